// SPDX-License-Identifier: Apache-2.0
// The common part of the two transports: connecting to the first of several endpoints that answers.
// Only the transport's own files include it.
#pragma once

#include <boost/asio/connect.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <vector>

#include "server/load/transport.h"

namespace sluice::load {

using Endpoints = std::vector<boost::asio::ip::tcp::endpoint>;

std::unique_ptr<TransportFactory> create_plain_factory(boost::asio::io_context& loop,
                                                       Endpoints endpoints);
// `tunnel_request`: for a proxy at the endpoints, before the handshake; empty: none.
Expected<std::unique_ptr<TransportFactory>> create_tls_factory(boost::asio::io_context& loop,
                                                               Endpoints endpoints,
                                                               const std::string& host,
                                                               Verification verification,
                                                               std::string tunnel_request,
                                                               const std::string& ca_file);

}  // namespace sluice::load
