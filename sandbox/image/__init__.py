"""The sandbox's image: what it is built from and what runs inside it."""
