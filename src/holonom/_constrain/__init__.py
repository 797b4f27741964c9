"""Constraints for any optimizer: hooks around its step move weights back to their spaces."""
