"""The patches, the scripts and the documents."""
