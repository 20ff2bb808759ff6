// SPDX-License-Identifier: Apache-2.0
// The common part of the two streams: connecting to the first of several endpoints that answers.
// Only the stream's own files include it.
#pragma once

#include <boost/asio/connect.hpp>
#include <boost/asio/generic/stream_protocol.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <vector>

#include "server/http/client/stream.h"

namespace sluice::client {

// TCP or a Unix socket.
using Socket = boost::asio::generic::stream_protocol::socket;
using Endpoint = boost::asio::generic::stream_protocol::endpoint;
using Endpoints = std::vector<Endpoint>;

std::unique_ptr<StreamFactory> create_plain_factory(boost::asio::io_context& loop,
                                                    Endpoints endpoints);
// `tunnel_request`: for a proxy at the endpoints, before the handshake; empty: none.
Expected<std::unique_ptr<StreamFactory>> create_tls_factory(boost::asio::io_context& loop,
                                                            Endpoints endpoints,
                                                            const std::string& host,
                                                            Verification verification,
                                                            std::string tunnel_request,
                                                            const std::string& ca_file);

}  // namespace sluice::client
