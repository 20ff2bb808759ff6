// SPDX-License-Identifier: Apache-2.0
// What is asked of a hub over HTTP: the files of a revision, the hash and size of one, its bytes.
// Requests are tried again where that can help; the token goes to the hub alone, not to the hosts
// it redirects to.
#pragma once

#include <functional>
#include <string>

#include "engine/core/status.h"
#include "server/http/client/fetch.h"
#include "server/hub/hub_options.h"
#include "server/hub/partial_file.h"
#include "server/hub/repo_files.h"

namespace sluice::hub {

class HubClient {
 public:
  HubClient(const HubOptions& options, std::string repo)
      : options_(options), repo_(std::move(repo)) {}

  // Tries once, unless it is `patient`.
  Expected<RepoInfo> repo_info(const std::string& revision, bool patient) const;
  Expected<RemoteFile> describe(const std::string& commit, const std::string& path) const;
  // Whole, from where `partial` ends. `on_bytes` receives the number of new bytes.
  Expected<void> download(const std::string& commit,
                          const RemoteFile& file,
                          PartialFile& partial,
                          const std::function<void(int64_t)>& on_bytes) const;

 private:
  // An answer of any status, redirects followed; HEAD stops at one that describes a file.
  Expected<client::ResponseHead> ask(client::FetchRequest request,
                                     client::ResponseSink& sink) const;
  // kUnavailable and kResourceExhausted: trying again may help.
  [[nodiscard]] tl::unexpected<Error> refused(const std::string& url,
                                              const client::ResponseHead& head) const;
  [[nodiscard]] std::string file_url(const std::string& commit, const std::string& path) const;

  const HubOptions& options_;
  const std::string repo_;
};

}  // namespace sluice::hub
