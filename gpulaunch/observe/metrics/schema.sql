-- The run's metrics.db. Times are seconds since 1970 (UTC), memory is in bytes; NULL: not measured.

CREATE TABLE gpu (
    id INTEGER PRIMARY KEY,
    uuid TEXT NOT NULL UNIQUE
);

-- The curve of each card; `throttled` holds names with commas between them.
CREATE TABLE card_sample (
    gpu INTEGER NOT NULL,
    at REAL NOT NULL,
    utilization REAL,
    memory INTEGER,
    power REAL,
    temperature INTEGER,
    throttled TEXT NOT NULL DEFAULT '',
    PRIMARY KEY (gpu, at)
) WITHOUT ROWID;

-- The newest sample of each card, whatever an earlier start's clock may have said. `energy`: its
-- counter, in joules.
CREATE TABLE card_now (
    uuid TEXT PRIMARY KEY,
    at REAL NOT NULL,
    utilization REAL,
    memory INTEGER,
    power REAL,
    temperature INTEGER,
    throttled TEXT NOT NULL DEFAULT '',
    energy REAL
) WITHOUT ROWID;

-- What each attempt has come to so far. `gpus` is how many cards it has, NULL for pretend ones.
-- `first` and `last` are the times of its samples. A mean is its `_sum` (value times seconds) by its
-- `_time` (seconds). `energy` is in joules: its own share of its cards'.
CREATE TABLE attempt (
    id INTEGER PRIMARY KEY,
    job TEXT NOT NULL,
    number INTEGER NOT NULL,
    gpus INTEGER,
    first REAL,
    last REAL,
    seconds REAL NOT NULL DEFAULT 0,
    gpu_memory_peak INTEGER,
    gpu_memory_sum REAL NOT NULL DEFAULT 0,
    gpu_memory_time REAL NOT NULL DEFAULT 0,
    card_memory_peak INTEGER,
    utilization_peak REAL,
    utilization_sum REAL NOT NULL DEFAULT 0,
    utilization_time REAL NOT NULL DEFAULT 0,
    cpu_seconds REAL,
    resident_peak INTEGER,
    pin TEXT,
    pin_why TEXT NOT NULL DEFAULT '',
    energy REAL,
    UNIQUE (job, number)
);

CREATE TABLE attempt_sample (
    attempt INTEGER NOT NULL,
    at REAL NOT NULL,
    gpu_memory INTEGER,
    cpu_seconds REAL,
    resident INTEGER,
    PRIMARY KEY (attempt, at)
) WITHOUT ROWID;

-- Up to when samples have been thinned to one in `step` seconds.
CREATE TABLE thinned (
    step REAL PRIMARY KEY,
    until REAL NOT NULL
) WITHOUT ROWID;
