/* What a C program computes with the tables of a bundle, for test_c_tables.py: one line in, one
 * out. */
#include <bundle.h>
#include <inttypes.h>
#include <stdio.h>

static void print_map(const cute_attn_map_arguments* map) {
  uint32_t i;
  printf("%d %d %d", map->data_type, map->swizzle, map->l2_promotion);
  for (i = 0; i < map->rank; ++i) printf(" %" PRIu64, map->sizes[i]);
  for (i = 0; i + 1 < map->rank; ++i) printf(" %" PRIu64, map->strides[i]);
  for (i = 0; i < map->rank; ++i) printf(" %" PRIu32, map->box[i]);
  printf("\n");
}

static const cute_attn_kernel* kernel_of(const char* name) {
  int i;
  for (i = 0; i < cute_attn_this_bundle.num_kernels; ++i) {
    if (strcmp(cute_attn_this_bundle.kernels[i]->name, name) == 0) {
      return cute_attn_this_bundle.kernels[i];
    }
  }
  return NULL;
}

/* map KERNEL FIELD, then for q tokens heads strides; for k and v the shapes of both. */
static void answer_map(void) {
  char name[256], field[16];
  long long n[12] = {0};
  const cute_attn_kernel* kernel;
  int i, count;
  if (scanf("%255s %15s %d", name, field, &count) != 3) return;
  for (i = 0; i < count; ++i) {
    if (scanf("%lld", &n[i]) != 1) return;
  }
  kernel = kernel_of(name);
  for (i = 0; i < kernel->num_tensor_maps; ++i) {
    const cute_attn_tensor_map* map = &kernel->tensor_maps[i];
    cute_attn_map_arguments found;
    if (strcmp(map->field, field) != 0) continue;
    if (map->tensor == 'q') {
      cute_attn_q q;
      q.tokens = n[0], q.heads = n[1], q.token_stride = n[2], q.head_stride = n[3];
      cute_attn_q_arguments(map, &q, &found);
    } else {
      cute_attn_kv k, v, *tensor = map->tensor == 'k' ? &k : &v;
      k.pages = n[0], k.rows = n[1], k.heads = n[2];
      k.page_stride = n[3], k.row_stride = n[4], k.head_stride = n[5];
      v.pages = n[6], v.rows = n[7], v.heads = n[8];
      v.page_stride = n[9], v.row_stride = n[10], v.head_stride = n[11];
      if (!cute_attn_takes_map(map, tensor)) continue;
      cute_attn_kv_arguments(map, tensor, cute_attn_box_rows(kernel, &k, &v), &found);
    }
    print_map(&found);
  }
}

/* choose CAPABILITY PAGE_SIZE NUM_SMS HEADS WINDOW_RIGHT COUNT, then q_len and kv_len of each. */
static void answer_choose(void) {
  int capability, page_size, sms, heads, right, count, i;
  int32_t q_len[64], kv_len[64];
  const cute_attn_problem* problem;
  if (scanf("%d %d %d %d %d %d", &capability, &page_size, &sms, &heads, &right, &count) != 6)
    return;
  for (i = 0; i < count; ++i) {
    if (scanf("%" SCNd32 " %" SCNd32, &q_len[i], &kv_len[i]) != 2) return;
  }
  problem = cute_attn_find_problem(&cute_attn_this_bundle, capability / 10, capability % 10,
                                   page_size, NULL);
  if (problem == NULL) {
    printf("none\n");
    return;
  }
  printf("%s\n",
         cute_attn_choose(problem, count, q_len, kv_len, heads, sms, CUTE_ATTN_UNBOUNDED, right)
             ->name);
}

/* derive PROBLEM SM_SCALE COUNT SCALARS */
static void answer_derive(void) {
  int problem, count, i;
  double sm_scale, scalars[8];
  cute_attn_derived derived;
  if (scanf("%d %lf %d", &problem, &sm_scale, &count) != 3) return;
  for (i = 0; i < count; ++i) {
    if (scanf("%lf", &scalars[i]) != 1) return;
  }
  cute_attn_this_bundle.problems[problem].derive(sm_scale, scalars, &derived);
  printf("%" PRId32 " %" PRId32 " %.9g %.9g\n", derived.window_left, derived.window_right,
         derived.sm_scale, derived.scale_log2);
}

int main(void) {
  char what[16];
  while (scanf("%15s", what) == 1) {
    if (strcmp(what, "map") == 0) answer_map();
    if (strcmp(what, "choose") == 0) answer_choose();
    if (strcmp(what, "derive") == 0) answer_derive();
    if (strcmp(what, "divide") == 0) {
      uint32_t page_size, magic;
      int32_t shift;
      if (scanf("%" SCNu32, &page_size) != 1) return 1;
      cute_attn_page_division(page_size, &magic, &shift);
      printf("%" PRIu32 " %" PRId32 "\n", magic, shift);
    }
  }
  return 0;
}
