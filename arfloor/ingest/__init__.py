"""Readers of outside formats, one file a format, each giving the records that a sweep writes."""
