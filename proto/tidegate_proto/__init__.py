"""Tidegate's wire formats: `inference_pb2` (the InferenceService) and `kserve_v2_pb2` with
`model_config_pb2` (the KServe v2 protocol), each service also as `…_pb2_grpc`.

All of it but this file is generated from the .proto files beside the package: `make generate`.
"""
