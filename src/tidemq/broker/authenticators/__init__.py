"""Who a client is: the authenticators and authorisers that come with the broker, and what serves them."""
