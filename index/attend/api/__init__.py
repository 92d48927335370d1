"""The API: what callers may ask and what comes back, each said once.

Requests are pydantic models, validated once for Python, the command line and HTTP; the service
publishes the same models as its OpenAPI schemas. A model refuses unknown fields, and a wrong value
becomes an `InvalidRequest` whose sentence names the field.
"""
