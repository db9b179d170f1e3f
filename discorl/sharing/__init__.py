"""Rules and agents through the Hugging Face Hub, with a card that says where they come from."""
