// SPDX-License-Identifier: Apache-2.0
// The only unit that compiles Asio's and Beast's non-template code.
#include <boost/asio/impl/src.hpp>
#include <boost/beast/src.hpp>
