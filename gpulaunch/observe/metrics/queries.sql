-- What is written once a second, and what is read. `sql.queries` knows each by its name.

-- name: know_gpu
INSERT OR IGNORE INTO gpu (uuid) VALUES (:gpu);

-- name: card
INSERT OR REPLACE INTO card_sample
SELECT id, :at, :utilization, :memory, :power, :temperature, :throttled
FROM gpu WHERE uuid = :gpu;

-- name: card_now
INSERT OR REPLACE INTO card_now
VALUES (:gpu, :at, :utilization, :memory, :power, :temperature, :throttled, :energy);

-- name: know_attempt
INSERT OR IGNORE INTO attempt (job, number, gpus) VALUES (:job, :number, :gpus);

-- name: attempt
INSERT OR REPLACE INTO attempt_sample
SELECT id, :at, :gpu_memory, :cpu_seconds, :resident
FROM attempt WHERE job = :job AND number = :number;

-- name: use
-- Scalar max() of a NULL is NULL: either may be the first that is known.
UPDATE attempt SET
    first = min(coalesce(first, :at), :at),
    last = max(coalesce(last, :at), :at),
    seconds = max(seconds, :seconds),
    gpu_memory_peak = max(coalesce(gpu_memory_peak, :gpu_memory),
                          coalesce(:gpu_memory, gpu_memory_peak)),
    gpu_memory_sum = gpu_memory_sum + coalesce(:gpu_memory * :span, 0),
    gpu_memory_time = gpu_memory_time + CASE WHEN :gpu_memory IS NULL THEN 0 ELSE :span END,
    card_memory_peak = max(coalesce(card_memory_peak, :card_memory),
                           coalesce(:card_memory, card_memory_peak)),
    utilization_peak = max(coalesce(utilization_peak, :utilization),
                           coalesce(:utilization, utilization_peak)),
    utilization_sum = utilization_sum + coalesce(:utilization * :span, 0),
    utilization_time = utilization_time + CASE WHEN :utilization IS NULL THEN 0 ELSE :span END,
    cpu_seconds = max(coalesce(cpu_seconds, :cpu_seconds), coalesce(:cpu_seconds, cpu_seconds)),
    resident_peak = max(coalesce(resident_peak, :resident), coalesce(:resident, resident_peak))
WHERE job = :job AND number = :number;

-- name: energy
UPDATE attempt SET energy = coalesce(energy, 0) + :joules WHERE job = :job AND number = :number;

-- name: pin
UPDATE attempt SET pin = :pin, pin_why = :why WHERE job = :job AND number = :number;

-- name: end
-- An attempt that was shorter than a look is known by its end alone.
INSERT INTO attempt (job, number, gpus, seconds, cpu_seconds)
VALUES (:job, :number, :gpus, :seconds, :cpu_seconds)
ON CONFLICT (job, number) DO UPDATE SET
    seconds = :seconds,
    cpu_seconds = max(coalesce(cpu_seconds, :cpu_seconds), coalesce(:cpu_seconds, cpu_seconds));

-- ── Thinning ──────────────────────────────────────────────────────────────────────────────────

-- name: thinned
SELECT until FROM thinned WHERE step = :step;

-- name: set_thinned
INSERT OR REPLACE INTO thinned VALUES (:step, :until);

-- name: card_series
SELECT id FROM gpu WHERE :since < :until;

-- name: card_old
SELECT at, utilization, memory, power, temperature, throttled
FROM card_sample WHERE gpu = :series AND at >= :since AND at < :until ORDER BY at;

-- name: card_drop
DELETE FROM card_sample WHERE gpu = ? AND at = ?;

-- name: card_put
INSERT OR REPLACE INTO card_sample VALUES (?, ?, ?, ?, ?, ?, ?);

-- name: attempt_series
SELECT id FROM attempt WHERE last >= :since AND first < :until;

-- name: attempt_old
SELECT at, gpu_memory, cpu_seconds, resident
FROM attempt_sample WHERE attempt = :series AND at >= :since AND at < :until ORDER BY at;

-- name: attempt_drop
DELETE FROM attempt_sample WHERE attempt = ? AND at = ?;

-- name: attempt_put
INSERT OR REPLACE INTO attempt_sample VALUES (?, ?, ?, ?, ?);

-- ── Reading ───────────────────────────────────────────────────────────────────────────────────

-- name: anything
SELECT EXISTS (SELECT 1 FROM card_now) OR EXISTS (SELECT 1 FROM attempt);

-- name: unfit
-- A job may write what it likes: SQLite takes any value in any column, and a view has no end where it
-- counts for ever. Texts and blobs are above every number.
SELECT EXISTS (
    SELECT 1 FROM sqlite_master WHERE type NOT IN ('table', 'index') OR sql LIKE 'CREATE VIRTUAL%'
);

-- name: unfit_values
SELECT EXISTS (
    SELECT 1 FROM attempt
    WHERE typeof(job) <> 'text' OR typeof(number) <> 'integer' OR typeof(pin_why) <> 'text'
       OR typeof(pin) NOT IN ('text', 'null') OR NOT number BETWEEN 0 AND 1e15
       OR NOT gpus BETWEEN 0 AND 1e6 OR NOT first BETWEEN 0 AND 250e9
       OR NOT last BETWEEN 0 AND 250e9 OR NOT seconds BETWEEN 0 AND 250e9
       OR NOT gpu_memory_peak BETWEEN 0 AND 1e18 OR NOT gpu_memory_sum BETWEEN 0 AND 1e30
       OR NOT gpu_memory_time BETWEEN 0 AND 250e9 OR NOT card_memory_peak BETWEEN 0 AND 1e18
       OR NOT utilization_peak BETWEEN 0 AND 1e6 OR NOT utilization_sum BETWEEN 0 AND 1e30
       OR NOT utilization_time BETWEEN 0 AND 250e9 OR NOT cpu_seconds BETWEEN 0 AND 1e15
       OR NOT resident_peak BETWEEN 0 AND 1e18 OR NOT energy BETWEEN 0 AND 1e15
) OR EXISTS (
    SELECT 1 FROM (
        SELECT at, utilization, memory, power, temperature, throttled FROM card_now
        UNION ALL
        SELECT at, utilization, memory, power, temperature, throttled FROM card_sample
    )
    WHERE typeof(throttled) <> 'text' OR NOT at BETWEEN 0 AND 250e9
       OR NOT utilization BETWEEN 0 AND 1e6 OR NOT memory BETWEEN 0 AND 1e18
       OR NOT power BETWEEN 0 AND 1e9 OR NOT temperature BETWEEN -1000 AND 1e6
) OR EXISTS (
    SELECT 1 FROM card_now WHERE NOT energy BETWEEN 0 AND 1e15
) OR EXISTS (
    SELECT 1 FROM attempt_sample
    WHERE NOT at BETWEEN 0 AND 250e9 OR NOT gpu_memory BETWEEN 0 AND 1e18
       OR NOT cpu_seconds BETWEEN 0 AND 1e15 OR NOT resident BETWEEN 0 AND 1e18
) OR EXISTS (SELECT 1 FROM (SELECT uuid FROM gpu UNION ALL SELECT uuid FROM card_now)
    WHERE typeof(uuid) <> 'text');

-- name: latest
SELECT uuid, at, utilization, memory, power, temperature, throttled FROM card_now;

-- name: counters
SELECT uuid, at, energy FROM card_now WHERE energy IS NOT NULL;

-- name: last_seen
SELECT max(at) FROM (SELECT max(at) AS at FROM card_now UNION ALL SELECT max(last) FROM attempt);

-- name: cards
SELECT at, utilization, memory, power, temperature, throttled
FROM card_sample WHERE gpu = (SELECT id FROM gpu WHERE uuid = :gpu) AND at >= :since ORDER BY at;

-- name: uses
SELECT job, number, gpus, seconds, gpu_memory_peak, gpu_memory_sum, gpu_memory_time,
       card_memory_peak, utilization_peak, utilization_sum, utilization_time,
       cpu_seconds, resident_peak, energy
FROM attempt WHERE id > (SELECT max(id) FROM attempt) - :newest;

-- name: one_use
SELECT job, number, gpus, seconds, gpu_memory_peak, gpu_memory_sum, gpu_memory_time,
       card_memory_peak, utilization_peak, utilization_sum, utilization_time,
       cpu_seconds, resident_peak, energy
FROM attempt WHERE job = :job AND number = :number;

-- name: totals
SELECT sum(energy), max(gpu_memory_peak > 0) FROM attempt;

-- name: pins
SELECT job, number, pin, pin_why FROM attempt WHERE pin IS NOT NULL;
