// A C++ client made from proto/kserve_v2.proto, for the gateway's tests: it shows that our protocol
// file is one that others can generate clients from.
//
//   client ADDRESS    asks the gateway at ADDRESS, and prints what it has got, a line an answer.
#include <grpcpp/grpcpp.h>

#include <cstring>
#include <iostream>
#include <string>
#include <vector>

#include "tidegate_proto/kserve_v2.grpc.pb.h"

using inference::GRPCInferenceService;
using inference::ModelInferRequest;
using inference::ModelInferResponse;
using inference::ModelStreamInferResponse;

template <typename T>
void AddInput(ModelInferRequest* request, const std::string& name, const std::string& datatype,
              const std::vector<T>& values) {
  auto* input = request->add_inputs();
  input->set_name(name);
  input->set_datatype(datatype);
  input->add_shape(values.size());
  request->add_raw_input_contents(values.data(), values.size() * sizeof(T));
}

// The metadata of a model: its name, and its inputs.
bool Describe(GRPCInferenceService::Stub* stub) {
  grpc::ClientContext context;
  inference::ModelMetadataRequest request;
  inference::ModelMetadataResponse response;
  request.set_name("slow");
  const auto status = stub->ModelMetadata(&context, request, &response);
  if (!status.ok()) return false;
  std::cout << "model " << response.name();
  for (const auto& input : response.inputs()) std::cout << " " << input.name();
  std::cout << std::endl;
  return true;
}

// One inference, of which each number is printed.
bool Infer(GRPCInferenceService::Stub* stub) {
  grpc::ClientContext context;
  ModelInferRequest request;
  ModelInferResponse response;
  request.set_model_name("slow");
  AddInput<float>(&request, "input", "FP32", {1.5f, -2.0f});
  const auto status = stub->ModelInfer(&context, request, &response);
  if (!status.ok() || response.raw_output_contents_size() != 1) return false;
  const std::string& raw = response.raw_output_contents(0);
  std::vector<float> values(raw.size() / sizeof(float));
  std::memcpy(values.data(), raw.data(), raw.size());
  std::cout << "infer";
  for (float value : values) std::cout << " " << value;
  std::cout << std::endl;
  return true;
}

// A request that does not fit: its status and sentence.
void Refuse(GRPCInferenceService::Stub* stub) {
  grpc::ClientContext context;
  ModelInferRequest request;
  ModelInferResponse response;
  request.set_model_name("slow");
  AddInput<double>(&request, "input", "FP64", {1});
  const auto status = stub->ModelInfer(&context, request, &response);
  std::cout << "refused " << status.error_code() << " " << status.error_message() << std::endl;
}

// All answers of a model that gives any number of them.
bool Stream(GRPCInferenceService::Stub* stub) {
  grpc::ClientContext context;
  auto stream = stub->ModelStreamInfer(&context);
  ModelInferRequest request;
  request.set_model_name("repeat");
  AddInput<int32_t>(&request, "count", "INT32", {3});
  if (!stream->Write(request) || !stream->WritesDone()) return false;
  ModelStreamInferResponse answer;
  std::cout << "stream";
  while (stream->Read(&answer)) {
    int32_t value = 0;
    if (answer.infer_response().raw_output_contents_size() != 1) return false;
    std::memcpy(&value, answer.infer_response().raw_output_contents(0).data(), sizeof(value));
    std::cout << " " << value;
  }
  std::cout << std::endl;
  return stream->Finish().ok();
}

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: client ADDRESS" << std::endl;
    return 2;
  }
  auto stub = GRPCInferenceService::NewStub(
      grpc::CreateChannel(argv[1], grpc::InsecureChannelCredentials()));
  if (!Describe(stub.get()) || !Infer(stub.get())) return 1;
  Refuse(stub.get());
  return Stream(stub.get()) ? 0 : 1;
}
