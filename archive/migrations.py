"""The archive's schema, as the steps that lead to it. Steps are only ever added: the nth leads to version n."""

MIGRATIONS: tuple[tuple[str, ...], ...] = (
    (
        "CREATE TABLE kernels (id TEXT PRIMARY KEY, op TEXT NOT NULL, text TEXT NOT NULL)",
        """CREATE TABLE proposals (
            id TEXT PRIMARY KEY, op TEXT NOT NULL, operator TEXT NOT NULL, proposer TEXT NOT NULL,
            kernel_id TEXT NOT NULL, parents TEXT NOT NULL, run TEXT NOT NULL, reply TEXT NOT NULL,
            failure TEXT NOT NULL, prompt_tokens INTEGER NOT NULL, completion_tokens INTEGER NOT NULL,
            seconds REAL NOT NULL, created REAL NOT NULL)""",
        """CREATE TABLE devices (
            id TEXT PRIMARY KEY, kind TEXT NOT NULL, name TEXT NOT NULL, arch TEXT NOT NULL, sms INTEGER NOT NULL,
            shared_bytes INTEGER NOT NULL, l2_bytes INTEGER NOT NULL, driver TEXT NOT NULL, torch TEXT NOT NULL,
            copy_gb_s REAL NOT NULL, tflops TEXT NOT NULL)""",
        """CREATE TABLE evaluations (
            id TEXT PRIMARY KEY, kernel_id TEXT NOT NULL, op TEXT NOT NULL, device_id TEXT NOT NULL,
            outcome TEXT NOT NULL, log TEXT NOT NULL, skipped TEXT NOT NULL, deterministic INTEGER,
            resources TEXT NOT NULL, seed INTEGER NOT NULL, seconds REAL NOT NULL, created REAL NOT NULL)""",
        """CREATE TABLE measurements (
            evaluation_id TEXT NOT NULL, workload TEXT NOT NULL, median_us REAL NOT NULL, low_us REAL NOT NULL,
            high_us REAL NOT NULL, samples INTEGER NOT NULL, eager_us REAL NOT NULL, compile_us REAL, floor_us REAL,
            PRIMARY KEY (evaluation_id, workload))""",
        """CREATE TABLE runs (
            id TEXT PRIMARY KEY, op TEXT NOT NULL, device TEXT NOT NULL, proposer TEXT NOT NULL,
            seed INTEGER NOT NULL, created REAL NOT NULL)""",
        "CREATE INDEX proposals_by_kernel ON proposals (kernel_id)",
        "CREATE INDEX evaluations_by_op ON evaluations (op)",
    ),
    (
        "ALTER TABLE measurements ADD COLUMN autotune_us REAL",
        "ALTER TABLE measurements ADD COLUMN graph_us REAL",
        # What was checked, under which conditions, and how it was confirmed, as JSON.
        "ALTER TABLE evaluations ADD COLUMN checks TEXT NOT NULL DEFAULT '[]'",
        "ALTER TABLE evaluations ADD COLUMN conditions TEXT",
        "ALTER TABLE evaluations ADD COLUMN confirmed TEXT",
    ),
)
