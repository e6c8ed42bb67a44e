/// doctest after LibTorch, never before: ATen's CHECK would replace doctest's, at times without a warning.
#pragma once

#include "mgfl/tensor/lean.hpp"

#undef CHECK
#undef CHECK_EQ
#undef CHECK_NE
#undef CHECK_LT
#undef CHECK_LE
#undef CHECK_GT
#undef CHECK_GE
#include <doctest/doctest.h>
