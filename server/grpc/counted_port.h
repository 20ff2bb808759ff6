// SPDX-License-Identifier: Apache-2.0
// A TCP port of gRPC whose connections the server accepts itself, so that they count in
// --max-connections with all others: the library would accept any number, and idle ones keep
// descriptors until they time out.
//
// When no slot is free, an old connection that has not authenticated is closed for a new one. A
// connection authenticates by a call with a key or the workers' secret, and then keeps its slot
// until it ends.
#pragma once

#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server_builder.h>

#include <cstdint>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <unordered_map>

#include "engine/core/status.h"
#include "server/http/listener.h"
#include "server/http/socket_name.h"

namespace sluice {

class FrontEnd;

class CountedPort {
 public:
  // What all ports share. Called on the port's thread.
  struct Slots {
    std::function<bool()> take;  // false: there is none
    std::function<void()> give;  // one back
    size_t num_reserved = 1;     // connections of this port beyond those
  };

  // Listens, with `joins` beside the process that has the port.
  static Expected<std::unique_ptr<CountedPort>> create(const SocketName& name,
                                                       bool joins,
                                                       Slots slots);
  ~CountedPort();
  CountedPort(const CountedPort&) = delete;
  CountedPort& operator=(const CountedPort&) = delete;

  // Makes the builder's server use the port; called before the server is built.
  void add_to(grpc::ServerBuilder& builder,
              const std::shared_ptr<grpc::ServerCredentials>& credentials);
  // Starts to accept; called once the server runs.
  void start();
  // Stops accepting and frees all slots; called before the server ends. A second call does nothing.
  void stop();

  // Records that the connection of this peer, as a call names it, has authenticated. Any thread.
  void mark_authenticated(std::string_view peer);

  [[nodiscard]] uint16_t port() const { return listener_->port(); }

 private:
  struct Entry {
    int descriptor = -1;  // gRPC's; it is a different file's once `inode` differs
    uint64_t inode = 0;
    std::string peer;
    bool has_slot = false;
    bool is_authenticated = false;
    bool is_ending = false;
  };

  CountedPort(std::unique_ptr<Listener> listener, int wake, Slots slots);
  void run();
  void accept_all();
  bool make_room(Entry& entry);
  void sweep();

  std::unique_ptr<Listener> listener_;
  const int wake_;  // an event that ends the thread
  const Slots slots_;
  std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> acceptor_;
  std::mutex mutex_;
  std::list<Entry> entries_;  // oldest first; guarded by mutex_, like the next
  std::unordered_map<std::string, std::list<Entry>::iterator> by_peer_;
  std::thread thread_;
};

// Returns the slots of --max-connections. The front end outlives them.
CountedPort::Slots slots_of(FrontEnd& front_end);

}  // namespace sluice
