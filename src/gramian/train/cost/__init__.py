"""What training costs, estimated in advance."""
