"""A reactor's turn, from epoll to the last write."""
