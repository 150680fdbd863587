// Page table arithmetic.
#pragma once

#include <cute/config.hpp>

namespace cute_attn {

// Divides by the run-time page size with one multiplication
// (codegen.attention_params.page_division).
struct PageDivider {
  int page_size;
  unsigned magic;
  int shift;

  CUTE_DEVICE int page_of(int token) const {
    unsigned t = token;
    return (magic ? __umulhi(t, magic) : t) >> shift;
  }
  CUTE_DEVICE int row_in_page(int token, int page) const { return token - page * page_size; }
};

}  // namespace cute_attn
