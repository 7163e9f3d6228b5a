// A C++ engine that speaks the InferenceService of proto/inference.proto, for the gateway's tests:
// it shows that one proto file serves Python and C++ alike.
//
//   engine PORT    listens on 127.0.0.1:PORT, 0 for any free port; says which on stdout.
//
// Models:
//   resnet50_cpp   `input_tensor` FP32 [N,3,224,224] -> `output_tensor` FP32 [N,1000]. Not a real
//                  ResNet: the score of class k is the mean of every 1000th element of the image
//                  from k on (numpy: image.ravel()[k::1000].mean()), so that each element counts
//                  in one score, and a test can tell whether the bytes arrived unchanged.
//   identity       answers its inputs: same names, shapes and bytes.
//   raising        fails with INTERNAL and a message that names a file, which no client may see.
#include <grpcpp/grpcpp.h>
#include <sys/prctl.h>

#include <csignal>
#include <cstdlib>
#include <cstring>
#include <iostream>
#include <memory>
#include <string>
#include <vector>

#include "inference.grpc.pb.h"

using grpc::Status;
using grpc::StatusCode;
using inference::InferRequest;
using inference::InferResponse;

constexpr size_t kElements = 3 * 224 * 224;  // of one image
constexpr size_t kClasses = 1000;
constexpr int kMessageLimit = 1 << 30;  // bytes; the gateway's limit too

Status Invalid(const std::string& message) { return {StatusCode::INVALID_ARGUMENT, message}; }

// The means of one image's elements by class; summed as doubles, in order.
std::vector<float> Scores(const float* image) {
  std::vector<double> sums(kClasses), counts(kClasses);
  for (size_t i = 0; i < kElements; ++i) {
    sums[i % kClasses] += image[i];
    counts[i % kClasses] += 1;
  }
  std::vector<float> scores(kClasses);
  for (size_t k = 0; k < kClasses; ++k) scores[k] = static_cast<float>(sums[k] / counts[k]);
  return scores;
}

Status Classify(const InferRequest& request, InferResponse* response) {
  if (request.inputs_size() != 1 || request.inputs(0).name() != "input_tensor")
    return Invalid("resnet50_cpp takes exactly one input, `input_tensor`");
  const auto& input = request.inputs(0);
  const auto& shape = input.shape();
  if (shape.size() != 4 || shape[0] < 1 || shape[1] != 3 || shape[2] != 224 || shape[3] != 224)
    return Invalid("input `input_tensor` must have the shape [N,3,224,224], N at least 1");
  const size_t image_bytes = kElements * sizeof(float);
  const std::string& content = input.tensor_content();
  const size_t images = content.size() / image_bytes;
  if (content.size() % image_bytes != 0 || images != static_cast<size_t>(shape[0]))
    return Invalid("input `input_tensor` has " + std::to_string(content.size()) +
                   " bytes; its shape asks for " + std::to_string(image_bytes) + " times " +
                   std::to_string(shape[0]));

  std::vector<float> pixels(images * kElements);  // the bytes of a message are not aligned
  std::memcpy(pixels.data(), content.data(), content.size());
  auto* output = response->add_outputs();
  output->set_name("output_tensor");
  output->add_shape(static_cast<int64_t>(images));
  output->add_shape(kClasses);
  for (size_t n = 0; n < images; ++n) {
    const std::vector<float> scores = Scores(pixels.data() + n * kElements);
    output->mutable_tensor_content()->append(reinterpret_cast<const char*>(scores.data()),
                                             kClasses * sizeof(float));
  }
  return Status::OK;
}

Status Echo(const InferRequest& request, InferResponse* response) {
  for (const auto& input : request.inputs()) {
    auto* output = response->add_outputs();
    output->set_name(input.name());
    *output->mutable_shape() = input.shape();
    output->set_tensor_content(input.tensor_content());
  }
  return Status::OK;
}

class Engine final : public inference::InferenceService::Service {
  Status ModelInfer(grpc::ServerContext*, const InferRequest* request,
                    InferResponse* response) override {
    const std::string& model = request->model_name();
    response->set_model_name(model);
    if (model == "resnet50_cpp") return Classify(*request, response);
    if (model == "identity") return Echo(*request, response);
    if (model == "raising")
      return {StatusCode::INTERNAL, "/opt/models/raising/1/model.cc:42: the model has failed"};
    return {StatusCode::NOT_FOUND, "model `" + model + "` is not served here"};
  }
};

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: engine PORT" << std::endl;
    return 2;
  }
  prctl(PR_SET_PDEATHSIG, SIGKILL);  // never outlive the test that started it

  Engine engine;
  int port = 0;
  grpc::ServerBuilder builder;
  builder.AddListeningPort("127.0.0.1:" + std::string(argv[1]), grpc::InsecureServerCredentials(),
                           &port);
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);  // an occupied port is an error
  // As the chart and the demo start Triton: the gateway may ping a quiet connection.
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, 5000);
  builder.AddChannelArgument(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  builder.SetMaxReceiveMessageSize(kMessageLimit);
  builder.SetMaxSendMessageSize(kMessageLimit);
  builder.RegisterService(&engine);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (server == nullptr) {
    std::cerr << "engine: cannot listen on 127.0.0.1:" << argv[1] << std::endl;
    return 1;
  }
  std::cout << "listening on " << port << std::endl;
  server->Wait();
}
