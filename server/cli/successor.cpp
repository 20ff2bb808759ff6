// SPDX-License-Identifier: Apache-2.0
#include "server/cli/successor.h"

#include <spawn.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdlib>
#include <cstring>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <string_view>
#include <vector>

#include "engine/core/log.h"

namespace sluice {
namespace {

constexpr std::string_view kDescriptor = "SLUICE_INHERITED_LISTENER=";
constexpr std::string_view kPredecessor = "SLUICE_PREDECESSOR=";
constexpr std::string_view kManaged = "SYSTEMD_EXEC_PID=";  // the unit's first process
constexpr const char* kNotifySocket = "NOTIFY_SOCKET";  // see sd_notify(3)

int number_from_environment(std::string_view assignment) {
  const std::string name(assignment.substr(0, assignment.size() - 1));
  const char* const text = std::getenv(name.c_str());
  return text == nullptr ? -1 : std::atoi(text);
}

std::vector<std::string> own_arguments() {
  std::ifstream in("/proc/self/cmdline", std::ios::binary);
  std::vector<std::string> arguments;
  for (std::string argument; std::getline(in, argument, '\0');) arguments.push_back(argument);
  return arguments;
}

// Where the program was; a newer one may have replaced it there.
std::string own_program() {
  std::error_code error;
  std::string path = std::filesystem::read_symlink("/proc/self/exe", error).string();
  constexpr std::string_view kReplaced = " (deleted)";
  if (path.ends_with(kReplaced)) path.resize(path.size() - kReplaced.size());
  return path;
}

std::vector<char*> pointers(std::vector<std::string>& texts) {
  std::vector<char*> all;
  for (std::string& text : texts) all.push_back(text.data());
  all.push_back(nullptr);
  return all;
}

// Sends a notice to the service manager; false, with errno: it has not come.
bool notify_manager(const std::string& socket, const std::string& notice) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  if (socket.size() >= sizeof address.sun_path) {
    errno = ENAMETOOLONG;
    return false;
  }
  socket.copy(address.sun_path, socket.size());
  if (address.sun_path[0] == '@') address.sun_path[0] = '\0';  // a name that is no file
  const auto length = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + socket.size());
  const int descriptor = ::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (descriptor < 0) return false;
  const ssize_t sent = ::sendto(descriptor,
                                notice.data(),
                                notice.size(),
                                MSG_NOSIGNAL,
                                reinterpret_cast<const sockaddr*>(&address),
                                length);
  const int error = errno;
  ::close(descriptor);
  errno = error;
  return sent >= 0;
}

// Where the service manager listens; empty: nowhere.
std::string notify_socket() {
  const char* const socket = std::getenv(kNotifySocket);
  return socket == nullptr ? "" : socket;
}

}  // namespace

std::string takeover_obstacle(const ServingProcess& process) {
  if (process.is_node) return "the other nodes of the model stay with this process";
  if (process.has_gpu) return "the GPU has no room for the next process beside this one";
  if (::getpid() == 1) return "a container ends with its first process, which this is (PID 1)";
  const bool is_unit = number_from_environment(kManaged) == ::getpid();
  if (is_unit && notify_socket().empty()) {
    return "systemd ends the unit with this process; NotifyAccess=main lets it learn of the next one";
  }
  return {};
}

Expected<pid_t> start_successor(int descriptor) {
  std::vector<std::string> arguments = own_arguments();
  std::vector<std::string> environment;
  for (char** entry = environ; *entry != nullptr; ++entry) {
    const std::string_view text = *entry;
    if (!text.starts_with(kDescriptor) && !text.starts_with(kPredecessor)) {
      environment.emplace_back(text);
    }
  }
  environment.push_back(std::string(kDescriptor) + std::to_string(descriptor));
  environment.push_back(std::string(kPredecessor) + std::to_string(::getpid()));

  posix_spawn_file_actions_t actions;
  posix_spawnattr_t attributes;
  ::posix_spawn_file_actions_init(&actions);
  ::posix_spawnattr_init(&attributes);
  ::posix_spawn_file_actions_adddup2(&actions, descriptor, descriptor);  // not closed at exec
  sigset_t none;
  sigemptyset(&none);
  ::posix_spawnattr_setsigmask(&attributes, &none);
  ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSIGMASK);
  pid_t process = -1;
  const int failed = ::posix_spawn(&process,
                                   own_program().c_str(),
                                   &actions,
                                   &attributes,
                                   pointers(arguments).data(),
                                   pointers(environment).data());
  ::posix_spawn_file_actions_destroy(&actions);
  ::posix_spawnattr_destroy(&attributes);
  if (failed != 0) {
    return make_error(ErrorCode::kUnavailable,
                      std::string("the next process cannot be started: ") + std::strerror(failed));
  }
  return process;
}

int inherited_listener() {
  // Only from the process that handed it over: its children would find the names as well.
  return number_from_environment(kPredecessor) == ::getppid() ? number_from_environment(kDescriptor)
                                                              : -1;
}

void announce_main_process(pid_t process) {
  const std::string socket = notify_socket();
  if (socket.empty()) return;
  if (notify_manager(socket, "MAINPID=" + std::to_string(process))) return;
  log_event(LogLevel::kError, "manager_not_notified", "reason", std::strerror(errno));
}

void relieve_predecessor() {
  const int predecessor = number_from_environment(kPredecessor);
  if (predecessor > 1 && predecessor == ::getppid()) ::kill(predecessor, SIGTERM);
}

}  // namespace sluice
