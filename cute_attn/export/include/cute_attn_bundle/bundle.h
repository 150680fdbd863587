/* A bundle as C tables, and the little arithmetic that a host does with them. C99 and C++.
 *
 * `bundle.h` beside the manifest, which is generated, holds the tables; manifest.schema.json
 * explains every number. Nothing here calls the CUDA driver or allocates. */
#ifndef CUTE_ATTN_BUNDLE_BUNDLE_H_
#define CUTE_ATTN_BUNDLE_BUNDLE_H_

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { CUTE_ATTN_ABI_VERSION = 1, CUTE_ATTN_UNBOUNDED = 1 << 30, CUTE_ATTN_MAP_BYTES = 128 };

typedef enum {
  CUTE_ATTN_TENSOR_MAP,
  CUTE_ATTN_POINTER,
  CUTE_ATTN_I64,
  CUTE_ATTN_I32,
  CUTE_ATTN_U32,
  CUTE_ATTN_F32
} cute_attn_kind;

/* One field of the struct that a kernel takes by value. */
typedef struct {
  const char* name;
  cute_attn_kind kind;
  uint32_t offset; /* bytes */
  uint32_t bytes;
} cute_attn_field;

/* Q: (tokens, heads, head_dim), strided. */
typedef struct {
  int64_t tokens, heads;
  int64_t token_stride, head_stride; /* elements */
} cute_attn_q;

/* K or V: (pages, rows, heads, head_dim), strided; ragged KV is one page of all rows. */
typedef struct {
  int64_t pages, rows, heads;
  int64_t page_stride, row_stride, head_stride; /* elements */
} cute_attn_kv;

/* Values of a tensor that recipes name. */
typedef enum {
  CUTE_ATTN_TOKENS,
  CUTE_ATTN_HEADS,
  CUTE_ATTN_TOKEN_STRIDE,
  CUTE_ATTN_HEAD_STRIDE,
  CUTE_ATTN_PAGES,
  CUTE_ATTN_ROWS,
  CUTE_ATTN_PAGE_STRIDE,
  CUTE_ATTN_ROW_STRIDE,
  CUTE_ATTN_PAGE_GROUPS,
  CUTE_ATTN_GROUPS,
  CUTE_ATTN_BOX_ROWS,
  CUTE_ATTN_VALUES
} cute_attn_value;

/* value * times / divided_by; without a value (-1): times / divided_by. */
typedef struct {
  int value;
  int64_t times, divided_by;
} cute_attn_term;

/* A dimension of a tensor map, from the innermost on, which has no stride. */
typedef struct {
  cute_attn_term size, stride, box;
} cute_attn_dimension;

typedef struct {
  const char* field;
  char tensor;     /* 'q', 'k' or 'v' */
  int page_groups; /* 1: if the tensor has them, 0: if not, -1: always */
  int data_type;   /* CUtensorMapDataType */
  int element_bytes;
  int swizzle;      /* CUtensorMapSwizzle */
  int l2_promotion; /* CUtensorMapL2promotion */
  int rank;
  cute_attn_dimension dimensions[5];
} cute_attn_tensor_map;

/* Arguments of cuTensorMapEncodeTiled, but for the address: no interleaving, outside zeros. */
typedef struct {
  int data_type, swizzle, l2_promotion;
  uint32_t rank;
  uint64_t sizes[5];
  uint64_t strides[5]; /* bytes; of dimensions 1, 2, ... */
  uint32_t box[5];
  uint32_t element_strides[5];
} cute_attn_map_arguments;

/* What plans take work to cost. */
typedef struct {
  int32_t tile_ns, row_key_ps, key_ps, partial_row_ps, merge_ns, key_bytes, masked_ns, merge_row_ps;
} cute_attn_costs;

typedef struct cute_attn_kernel {
  const char* name;  /* entry symbol */
  const char* cubin; /* path from the manifest */
  uint32_t cubin_bytes;
  const char* cubin_sha256;
  int major, minor; /* compute capability: this major, this minor or a higher one */
  int exact;        /* 1: this minor only */
  uint32_t block;   /* threads */
  uint32_t grid_y;  /* blocks in y; in x: num_blocks of the plan */
  uint32_t smem_bytes;
  uint32_t blocks_per_sm;
  int dependent_launch; /* may be launched with programmatic stream serialization */
  uint32_t parameter_bytes;
  uint32_t parameter_alignment;
  int num_fields;
  const cute_attn_field* fields;
  /* Of attention kernels: */
  int head_dim_qk, head_dim_vo, group, tile_q, tile_kv;
  int page_size_multiple;               /* 0: ragged KV */
  const struct cute_attn_kernel* merge; /* that follows, or null: it merges split tiles itself */
  int num_tensor_maps;
  const cute_attn_tensor_map* tensor_maps;
  cute_attn_costs costs;
} cute_attn_kernel;

typedef struct {
  const char* name;
  cute_attn_kind kind;
  double initial;
  int is_live; /* the parameter is a pointer to the number, in device memory */
} cute_attn_scalar;

/* What a host computes of a variant's scalars. */
typedef struct {
  int32_t window_left, window_right;
  float sm_scale, scale_log2; /* parameters of the kernel */
} cute_attn_derived;

typedef struct {
  int is_long;
  int most_rows, most_tiles_per_sm; /* -1: any number */
  const cute_attn_kernel* kernel;
} cute_attn_choice;

/* Steps that the bundle has kernels for, on one architecture. */
typedef struct {
  int major, minor; /* of the GPU */
  const char* dtype;
  int head_dim_qk, head_dim_vo, group;
  const char* variant;
  int page_size;        /* 0: ragged KV */
  const char* schedule; /* that was asked for, or null */
  int num_scalars;
  const cute_attn_scalar* scalars;
  void (*derive)(double sm_scale, const double* scalars, cute_attn_derived* derived);
  int num_decode_rows;
  const int* decode_rows;
  int64_t long_keys;
  int num_choices;
  const cute_attn_choice* choices;
} cute_attn_problem;

typedef struct {
  int abi_version;
  int required_cuda; /* 1000 * major + 10 * minor, as cuDriverGetVersion counts */
  int64_t arrivals_bytes, workspace_alignment;
  int num_kernels;
  const cute_attn_kernel* const* kernels;
  int num_problems;
  const cute_attn_problem* problems;
} cute_attn_bundle;

/* The field of a name, or null. */
static inline const cute_attn_field* cute_attn_find_field(const cute_attn_kernel* kernel,
                                                          const char* name) {
  int i;
  for (i = 0; i < kernel->num_fields; ++i) {
    if (strcmp(kernel->fields[i].name, name) == 0) return &kernel->fields[i];
  }
  return NULL;
}

/* Copies a value into the struct of parameters. Returns 0 if the kernel has no such field, or one
 * of another size. */
static inline int cute_attn_put(const cute_attn_kernel* kernel, void* parameters, const char* name,
                                const void* value, size_t bytes) {
  const cute_attn_field* field = cute_attn_find_field(kernel, name);
  if (field == NULL || field->bytes != bytes) return 0;
  memcpy((char*)parameters + field->offset, value, bytes);
  return 1;
}

static inline int cute_attn_put_pointer(const cute_attn_kernel* kernel, void* parameters,
                                        const char* name, uint64_t address) {
  return cute_attn_put(kernel, parameters, name, &address, sizeof address);
}

static inline int cute_attn_put_i64(const cute_attn_kernel* kernel, void* parameters,
                                    const char* name, int64_t value) {
  return cute_attn_put(kernel, parameters, name, &value, sizeof value);
}

static inline int cute_attn_put_i32(const cute_attn_kernel* kernel, void* parameters,
                                    const char* name, int32_t value) {
  return cute_attn_put(kernel, parameters, name, &value, sizeof value);
}

static inline int cute_attn_put_f32(const cute_attn_kernel* kernel, void* parameters,
                                    const char* name, float value) {
  return cute_attn_put(kernel, parameters, name, &value, sizeof value);
}

/* Parameters page_magic and page_shift of a page size, at least 1:
 * token / page_size == umulhi(token, magic) >> shift, or token >> shift if magic is 0. */
static inline void cute_attn_page_division(uint32_t page_size, uint32_t* magic, int32_t* shift) {
  int bits = 0;
  while ((uint64_t)1 << bits < page_size) ++bits;
  if ((page_size & (page_size - 1)) == 0) {
    *magic = 0;
    *shift = bits;
    return;
  }
  *shift = bits - 1;
  *magic = (uint32_t)((((uint64_t)1 << (31 + bits)) + page_size - 1) / page_size);
}

/* Groups of eight rows from a page to the next; 0 if that is no whole number. */
static inline int64_t cute_attn_page_groups(const cute_attn_kv* tensor) {
  int64_t step = 8 * tensor->row_stride;
  if (tensor->pages <= 1) return tensor->rows / 8;
  return step > 0 && tensor->page_stride % step == 0 ? tensor->page_stride / step : 0;
}

/* Parameter box_rows: KV rows of a TMA box. */
static inline int64_t cute_attn_box_rows(const cute_attn_kernel* kernel, const cute_attn_kv* k,
                                         const cute_attn_kv* v) {
  int64_t a = kernel->tile_kv;
  int64_t b = k->rows;
  if (kernel->page_size_multiple == 0) return a;
  if (cute_attn_find_field(kernel, "k_page_groups") != NULL &&
      (cute_attn_page_groups(k) == 0 || cute_attn_page_groups(v) == 0)) {
    return 8;
  }
  while (b != 0) {
    int64_t rest = a % b;
    a = b;
    b = rest;
  }
  return a;
}

static inline int64_t cute_attn_number(cute_attn_term term, const int64_t* values) {
  return (term.value < 0 ? 1 : values[term.value]) * term.times / term.divided_by;
}

static inline void cute_attn_resolve(const cute_attn_tensor_map* map, const int64_t* values,
                                     cute_attn_map_arguments* found) {
  int i;
  memset(found, 0, sizeof *found);
  found->data_type = map->data_type;
  found->swizzle = map->swizzle;
  found->l2_promotion = map->l2_promotion;
  found->rank = (uint32_t)map->rank;
  for (i = 0; i < map->rank; ++i) {
    const cute_attn_dimension* dimension = &map->dimensions[i];
    int64_t size = cute_attn_number(dimension->size, values);
    found->sizes[i] = (uint64_t)(size > 1 ? size : 1);
    found->box[i] = (uint32_t)cute_attn_number(dimension->box, values);
    found->element_strides[i] = 1;
    if (i > 0) { /* the stride of a single element says nothing, but is checked */
      int is_known = dimension->stride.value < 0 || size > 1;
      int64_t stride = cute_attn_number(dimension->stride, values) * map->element_bytes;
      found->strides[i - 1] = (uint64_t)(is_known ? stride : 16);
    }
  }
}

/* The arguments for a map of q. */
static inline void cute_attn_q_arguments(const cute_attn_tensor_map* map, const cute_attn_q* q,
                                         cute_attn_map_arguments* found) {
  int64_t values[CUTE_ATTN_VALUES] = {0};
  values[CUTE_ATTN_TOKENS] = q->tokens;
  values[CUTE_ATTN_HEADS] = q->heads;
  values[CUTE_ATTN_TOKEN_STRIDE] = q->token_stride;
  values[CUTE_ATTN_HEAD_STRIDE] = q->head_stride;
  cute_attn_resolve(map, values, found);
}

/* The same for a map of k or v; box_rows: of both. */
static inline void cute_attn_kv_arguments(const cute_attn_tensor_map* map,
                                          const cute_attn_kv* tensor, int64_t box_rows,
                                          cute_attn_map_arguments* found) {
  int64_t values[CUTE_ATTN_VALUES] = {0};
  int64_t page_groups = cute_attn_page_groups(tensor);
  values[CUTE_ATTN_PAGES] = tensor->pages;
  values[CUTE_ATTN_ROWS] = tensor->rows;
  values[CUTE_ATTN_HEADS] = tensor->heads;
  values[CUTE_ATTN_PAGE_STRIDE] = tensor->page_stride;
  values[CUTE_ATTN_ROW_STRIDE] = tensor->row_stride;
  values[CUTE_ATTN_HEAD_STRIDE] = tensor->head_stride;
  values[CUTE_ATTN_PAGE_GROUPS] = page_groups;
  values[CUTE_ATTN_GROUPS] =
      ((tensor->pages > 1 ? tensor->pages : 1) - 1) * page_groups + tensor->rows / 8;
  values[CUTE_ATTN_BOX_ROWS] = box_rows;
  cute_attn_resolve(map, values, found);
}

/* Whether a map is the one to encode for k or v, where a field has two. */
static inline int cute_attn_takes_map(const cute_attn_tensor_map* map, const cute_attn_kv* tensor) {
  return map->page_groups < 0 || map->page_groups == (cute_attn_page_groups(tensor) != 0);
}

/* The problem of a GPU, a page size (0: ragged KV) and a kernel family (null: the default), or
 * null: the bundle has no code for it. */
static inline const cute_attn_problem* cute_attn_find_problem(const cute_attn_bundle* bundle,
                                                              int major, int minor, int page_size,
                                                              const char* schedule) {
  int i;
  for (i = 0; i < bundle->num_problems; ++i) {
    const cute_attn_problem* problem = &bundle->problems[i];
    int is_asked = schedule == NULL
                       ? problem->schedule == NULL
                       : problem->schedule != NULL && strcmp(problem->schedule, schedule) == 0;
    if (problem->major == major && problem->minor == minor && problem->page_size == page_size &&
        is_asked) {
      return problem;
    }
  }
  return NULL;
}

/* The kernel for a step.
 *
 *   q_len, kv_len               (num_requests) tokens
 *   window_left, window_right   of the step, see cute_attn_derived */
static inline const cute_attn_kernel* cute_attn_choose(const cute_attn_problem* problem,
                                                       int num_requests, const int32_t* q_len,
                                                       const int32_t* kv_len, int num_kv_heads,
                                                       int num_sms, int32_t window_left,
                                                       int32_t window_right) {
  int64_t visible = (int64_t)window_left + window_right + 1;
  int64_t longest = 0, with_queries = 0, beyond = 0, decode_rows = 0, tiles;
  int i;
  for (i = 0; i < num_requests; ++i) {
    int64_t keys = kv_len[i] < visible ? kv_len[i] : visible;
    if (q_len[i] > longest) longest = q_len[i];
    with_queries += q_len[i] > 0;
    beyond += q_len[i] * (keys - problem->long_keys);
  }
  longest *= problem->group;
  for (i = 0; i < problem->num_decode_rows; ++i) {
    decode_rows = problem->decode_rows[i];
    if (decode_rows >= longest) break;
  }
  tiles = (longest + decode_rows - 1) / decode_rows * num_kv_heads * with_queries;
  tiles = (tiles + num_sms - 1) / num_sms;
  for (i = 0; i < problem->num_choices; ++i) {
    const cute_attn_choice* choice = &problem->choices[i];
    if (choice->is_long == (beyond >= 0 && with_queries > 0) &&
        (choice->most_rows < 0 || longest <= choice->most_rows) &&
        (choice->most_tiles_per_sm < 0 || tiles <= choice->most_tiles_per_sm)) {
      return choice->kernel;
    }
  }
  return NULL;
}

/* Whether a kernel runs on a GPU of this compute capability. */
static inline int cute_attn_runs_on(const cute_attn_kernel* kernel, int major, int minor) {
  return kernel->major == major &&
         (kernel->exact ? minor == kernel->minor : minor >= kernel->minor);
}

#ifdef __cplusplus
}
#endif

#endif /* CUTE_ATTN_BUNDLE_BUNDLE_H_ */
