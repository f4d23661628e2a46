/* Work on many tensors, cut into items that several threads take one after another. Included after _native_scaling.h. */

/* Elements of an item of work, and of the work that is worth another thread: on a busy machine, a thread may have to
 * wait for its first turn, and the call for the thread. */
enum { CHUNK = 1 << 17, PER_THREAD = 1 << 21, MAX_THREADS = 64, TEAM_ITEMS = 4 };
/* Rows of `moments` and of `counts`, as types.MOMENT_COLUMNS and types.COUNT_COLUMNS. */
enum { NORM, MAX_ABS, MIN_ABS, MEAN, STD, MEAN_ABS };
enum { NUMEL, ZEROS, NANS, INFS };

/* GOMP_parallel of the OpenMP runtime that torch computes with: calls `work` with `data` on up to `threads` threads,
 * 0 being its default. */
typedef void (*Team)(void (*work)(void *), void *data, unsigned threads, unsigned flags);

/* One piece of work: elements [start, start + CHUNK) of one tensor, or all of the small tensors [tensor, last). */
typedef struct {
    int64_t tensor, last, start;
    Sums sums;
} Item;

typedef struct {
    const uintptr_t *addresses;
    const int64_t *numels;
    const unsigned char *kinds;
    int64_t n_tensors, n_items, next; /* next: item that no thread has taken yet */
    double *moments;
    int64_t *counts, *histogram, *item_histograms;
    const double *factors; /* of each tensor, to multiply by; NULL: measure */
    Item *items;
    Team team; /* NULL: threads of our own */
} Job;

/* Write the row of one tensor from its sums. */
static void publish(const Job *job, int64_t tensor, const Sums *sums)
{
    const int64_t stride = job->n_tensors;
    double *moments = job->moments + tensor;
    int64_t *counts = job->counts + tensor;
    const double n = (double)sums->finite, mean = scale(sums->mean, -sums->exponent);
    moments[NORM * stride] = scale(sqrt(sums->scatter + n * mean * mean), sums->exponent);
    moments[MAX_ABS * stride] = sums->max_abs;
    moments[MIN_ABS * stride] = sums->min_abs;
    moments[MEAN * stride] = sums->mean;
    moments[STD * stride] = n > 0 ? scale(sqrt(sums->scatter / n), sums->exponent) : 0;
    moments[MEAN_ABS * stride] = sums->mean_abs;
    counts[NUMEL * stride] = job->numels[tensor];
    counts[ZEROS * stride] = sums->zeros;
    counts[NANS * stride] = sums->nan;
    counts[INFS * stride] = sums->inf;
}

static void scale_item(const Job *job, const Item *item)
{
    const int64_t last = item->last ? item->last : item->tensor + 1;
    for (int64_t i = item->tensor; i < last; i++) {
        const int64_t left = job->kinds[i] == SKIP || job->factors[i] == 1.0 ? 0 : job->numels[i] - item->start;
        if (left > 0)
            scale_elements((char *)job->addresses[i] + item->start * ITEM_SIZE[job->kinds[i]], job->kinds[i],
                           left < CHUNK ? left : CHUNK, job->factors[i]);
    }
}

static void do_item(const Job *job, Item *item, int64_t *item_histogram)
{
    if (item->last == 0) {
        const int64_t left = job->numels[item->tensor] - item->start;
        const int kind = job->kinds[item->tensor];
        add_elements((const char *)job->addresses[item->tensor] + item->start * ITEM_SIZE[kind], kind,
                     left < CHUNK ? left : CHUNK, &item->sums, item_histogram);
        return;
    }
    for (int64_t i = item->tensor; i < item->last; i++) {
        Sums sums = {0};
        if (job->kinds[i] == SKIP)
            continue;
        if (i + 1 < item->last && job->kinds[i + 1] != SKIP)
            prefetch((const char *)job->addresses[i + 1],
                     (job->numels[i + 1] < BLOCK ? job->numels[i + 1] : BLOCK) * ITEM_SIZE[job->kinds[i + 1]]);
        add_elements((const char *)job->addresses[i], job->kinds[i], job->numels[i], &sums,
                     job->histogram ? job->histogram + i * BINS : NULL);
        publish(job, i, &sums);
    }
}

static void *work(void *argument)
{
    Job *job = argument;
    for (;;) {
        const int64_t i = __atomic_fetch_add(&job->next, 1, __ATOMIC_RELAXED);
        if (i >= job->n_items)
            return NULL;
        if (job->factors) { /* from the end: what was measured last is in the caches still */
            scale_item(job, job->items + job->n_items - 1 - i);
            continue;
        }
        do_item(job, job->items + i, job->histogram ? job->item_histograms + i * BINS : NULL);
    }
}

/* Cut the work into items; returns their number, and writes them where `items` is not NULL. */
static int64_t plan(const Job *job, Item *items)
{
    int64_t count = 0, first = 0, gathered = 0;
    for (int64_t i = 0; i <= job->n_tensors; i++) {
        const int64_t n = i == job->n_tensors || job->kinds[i] == SKIP ? 0 : job->numels[i];
        const int large = n > CHUNK;
        if ((large || i == job->n_tensors || gathered + n > CHUNK) && i > first) {
            if (items)
                items[count] = (Item){.tensor = first, .last = i};
            count++;
            first = i;
            gathered = 0;
        }
        gathered += n + BLOCK / 16; /* a tensor costs something, however small */
        for (int64_t start = 0; large && start < n; start += CHUNK, count++)
            if (items)
                items[count] = (Item){.tensor = i, .start = start};
        if (large) {
            first = i + 1;
            gathered = 0;
        }
    }
    return count;
}

/* Join the items of each large tensor, in order. */
static void finish(const Job *job)
{
    for (int64_t i = 0; i < job->n_items;) {
        const Item *head = job->items + i;
        const int64_t tensor = head->tensor;
        Sums total = {0};
        if (head->last != 0) {
            i++;
            continue;
        }
        for (; i < job->n_items && job->items[i].last == 0 && job->items[i].tensor == tensor; i++) {
            merge(&total, &job->items[i].sums);
            for (int bin = 0; job->histogram && bin < BINS; bin++)
                job->histogram[tensor * BINS + bin] += job->item_histograms[i * BINS + bin];
        }
        publish(job, tensor, &total);
    }
}

static void work_in_team(void *job)
{
    (void)work(job);
}

/* Threads of our own live for one call: nothing to wait for in a forked child, nothing to shut down. */
static void run_on_own_threads(Job *job, int n_threads)
{
    pthread_t threads[MAX_THREADS];
    int started = 0;
    if (n_threads > MAX_THREADS)
        n_threads = MAX_THREADS;
    if (n_threads > job->n_items * CHUNK / PER_THREAD)
        n_threads = (int)(job->n_items * CHUNK / PER_THREAD);
    while (started + 1 < n_threads && started + 1 < job->n_items) {
        if (pthread_create(&threads[started], NULL, work, job) != 0)
            break;
        started++;
    }
    work(job);
    for (int i = 0; i < started; i++)
        pthread_join(threads[i], NULL);
}

/* Run on torch's threads where there is a team: after a backward pass they spin for some milliseconds in wait for more,
 * and a thread of our own would find no core that is free. Whoever comes takes the next item, so that any number of
 * threads gives the same result. 0 asks for as many as torch's own loops have: another number would end some of them. */
static void run(Job *job, int n_threads)
{
    if (job->team && n_threads > 1 && job->n_items >= TEAM_ITEMS)
        job->team(work_in_team, job, 0, 0);
    else
        run_on_own_threads(job, job->team ? 1 : n_threads);
    if (!job->factors)
        finish(job);
}

/* A tensor's bytes in memory. */
typedef struct {
    uintptr_t start, end;
} Extent;

static int by_start(const void *one, const void *other)
{
    const uintptr_t a = ((const Extent *)one)->start, b = ((const Extent *)other)->start;
    return a < b ? -1 : a > b;
}

/* Whether tensors may share memory, so that two threads must not change them at once. */
static int overlapping(const Job *job)
{
    Extent *extents = calloc((size_t)job->n_tensors + 1, sizeof *extents);
    int64_t count = 0;
    int found = !extents;
    for (int64_t i = 0; extents && i < job->n_tensors; i++)
        if (job->kinds[i] != SKIP && job->numels[i] > 0) {
            const uintptr_t start = job->addresses[i];
            extents[count++] = (Extent){start, start + (uintptr_t)job->numels[i] * ITEM_SIZE[job->kinds[i]]};
        }
    if (extents)
        qsort(extents, (size_t)count, sizeof *extents, by_start);
    for (int64_t i = 1; i < count && !found; i++)
        found = extents[i].start < extents[i - 1].end;
    free(extents);
    return found;
}
