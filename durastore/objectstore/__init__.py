"""The bucket behind one narrow port: S3, a directory or memory, with the same answers and the same refusals.

Duty: read, list, create and upload objects, and say exactly what is known when something failed. No port here can
take an object away. Modules are imported where they are needed: the S3 adapter loads boto3, this package does not.
"""
