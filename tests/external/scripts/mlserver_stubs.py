"""The generated stubs of MLServer over gRPC. Argument: the address of a node."""

import sys

import grpc
from mlserver.grpc import dataplane_pb2 as messages
from mlserver.grpc.dataplane_pb2_grpc import GRPCInferenceServiceStub

stub = GRPCInferenceServiceStub(grpc.insecure_channel(sys.argv[1]))
assert stub.ServerLive(messages.ServerLiveRequest()).live and stub.ServerReady(messages.ServerReadyRequest()).ready
assert stub.ModelReady(messages.ModelReadyRequest(name="number")).ready
described = stub.ModelMetadata(messages.ModelMetadataRequest(name="number"))
assert [(field.name, field.datatype) for field in described.inputs] == [("input", "FP64")], described
print("described")

Request = messages.ModelInferRequest
values = messages.InferTensorContents(fp64_contents=[21.0])
tensor = Request.InferInputTensor(name="input", datatype="FP64", shape=[1], contents=values)
for model, status in (("number", None), ("absent", grpc.StatusCode.NOT_FOUND), ("fail", grpc.StatusCode.UNKNOWN)):
    try:
        [output] = stub.ModelInfer(Request(model_name=model, inputs=[tensor])).outputs
        assert (status, list(output.contents.fp64_contents)) == (None, [42.0]), output
    except grpc.RpcError as error:
        assert error.code() == status, error
print("inferred")

[listed] = [model for model in stub.RepositoryIndex(messages.RepositoryIndexRequest()).models if model.name == "number"]
assert listed.state == "READY", listed
print("listed")
