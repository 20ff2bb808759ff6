// SPDX-License-Identifier: Apache-2.0
// The one place where Asio's and Beast's non-template code is compiled.
#include <boost/asio/impl/src.hpp>
#include <boost/beast/src.hpp>
