// SPDX-License-Identifier: Apache-2.0
#include "server/grpc/reflection_service.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/descriptor.pb.h>
#include <reflection.pb.h>

#include <algorithm>
#include <array>
#include <exception>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "server/front/metrics.h"
#include "server/grpc/health_service.h"
#include "server/grpc/rpc_context.h"

namespace sluice {
namespace {

using google::protobuf::DescriptorPool;
using google::protobuf::FieldDescriptor;
using google::protobuf::FileDescriptor;
using grpc::reflection::v1::ServerReflectionRequest;
using grpc::reflection::v1::ServerReflectionResponse;

constexpr std::string_view kReflectionService = "grpc.reflection.v1.ServerReflection";
// It has the same messages; most clients know no other.
constexpr std::string_view kOlderReflectionService = "grpc.reflection.v1alpha.ServerReflection";
constexpr std::string_view kMethod = "ServerReflectionInfo";

constexpr std::array kServices = {
    kVllmService, kSluiceService, kHealthService, kReflectionService};

// Answers one question after another, on gRPC's threads; deletes itself.
class ReflectionCall final : public OneRequestWire<ServerReflectionResponse> {
 public:
  ReflectionCall() { StartRead(&message_); }

  void OnReadDone(bool ok) override {
    if (!ok) return Finish(grpc::Status::OK);  // the client has asked all
    const size_t bytes = message_.Length();
    if (bytes > kMostQuestionBytes) return Finish(too_long(bytes));
    try {
      ServerReflectionRequest request;
      if (!parse(message_, request)) return Finish(malformed());
      response_.Clear();
      answer(request);
      response_.set_valid_host(request.host());
      *response_.mutable_original_request() = std::move(request);
    } catch (const std::exception&) {  // for want of memory
      return Finish({grpc::StatusCode::UNAVAILABLE, "The server has too little for this call."});
    }
    StartWrite(&response_);
  }

  void OnWriteDone(bool ok) override {
    if (!ok) return Finish(grpc::Status::CANCELLED);
    StartRead(&message_);
  }

  void OnDone() override { delete this; }

 private:
  void answer(const ServerReflectionRequest& request) {
    switch (request.message_request_case()) {
      case ServerReflectionRequest::kFileByFilename:
        return send_file(pool_.FindFileByName(request.file_by_filename()));
      case ServerReflectionRequest::kFileContainingSymbol:
        return send_file(pool_.FindFileContainingSymbol(request.file_containing_symbol()));
      case ServerReflectionRequest::kFileContainingExtension: {
        const auto& asked = request.file_containing_extension();
        const auto* type = pool_.FindMessageTypeByName(asked.containing_type());
        const FieldDescriptor* field =
            type == nullptr ? nullptr
                            : pool_.FindExtensionByNumber(type, asked.extension_number());
        return send_file(field == nullptr ? nullptr : field->file());
      }
      case ServerReflectionRequest::kAllExtensionNumbersOfType:
        return send_extensions(request.all_extension_numbers_of_type());
      case ServerReflectionRequest::kListServices:
        for (const std::string_view name : kServices) {
          response_.mutable_list_services_response()->add_service()->set_name(std::string(name));
        }
        return;
      case ServerReflectionRequest::MESSAGE_REQUEST_NOT_SET:
        break;
    }
    send_error(grpc::StatusCode::INVALID_ARGUMENT, "The request asks nothing that is known here.");
  }

  // The file, and each that it needs once.
  void send_file(const FileDescriptor* file) {
    if (file == nullptr) return send_error(grpc::StatusCode::NOT_FOUND, "There is no such thing.");
    std::vector<const FileDescriptor*> files = {file};
    for (size_t sent = 0; sent < files.size(); ++sent) {
      google::protobuf::FileDescriptorProto proto;
      files[sent]->CopyTo(&proto);
      proto.SerializeToString(
          response_.mutable_file_descriptor_response()->add_file_descriptor_proto());
      for (int i = 0; i < files[sent]->dependency_count(); ++i) {
        const FileDescriptor* needed = files[sent]->dependency(i);
        if (std::ranges::find(files, needed) == files.end()) files.push_back(needed);
      }
    }
  }

  void send_extensions(const std::string& type_name) {
    const auto* type = pool_.FindMessageTypeByName(type_name);
    if (type == nullptr) return send_error(grpc::StatusCode::NOT_FOUND, "There is no such type.");
    std::vector<const FieldDescriptor*> fields;
    pool_.FindAllExtensions(type, &fields);
    auto& out = *response_.mutable_all_extension_numbers_response();
    out.set_base_type_name(type_name);
    for (const FieldDescriptor* field : fields) out.add_extension_number(field->number());
  }

  void send_error(grpc::StatusCode code, const std::string& message) {
    response_.mutable_error_response()->set_error_code(code);
    response_.mutable_error_response()->set_error_message(message);
  }

  const DescriptorPool& pool_ = *DescriptorPool::generated_pool();
  grpc::ByteBuffer message_;
  ServerReflectionResponse response_;
};

}  // namespace

ReflectionService::ReflectionService(const RpcContext& rpc) {
  using Wire = OneRequestWire<ServerReflectionResponse>;
  for (const std::string_view service : {kReflectionService, kOlderReflectionService}) {
    serve<ServerReflectionResponse>(service, kMethod, [&rpc](auto* context) -> Wire* {
      const auto tenant = rpc.admit(*context);
      if (!tenant) return new UnreadReactor<ServerReflectionResponse>(to_status(tenant.error()));
      return new ReflectionCall();
    });
  }
}

}  // namespace sluice
