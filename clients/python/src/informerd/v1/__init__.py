"""Messages and stubs that ``clients/python/generate`` makes of the proto."""
