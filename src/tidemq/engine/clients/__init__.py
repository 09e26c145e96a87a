"""What clients ask for: CONNECT, SUBSCRIBE, PUBLISH, their ends and their wills."""
