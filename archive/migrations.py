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
    (
        "ALTER TABLE proposals ADD COLUMN cached_tokens INTEGER NOT NULL DEFAULT 0",
        "ALTER TABLE proposals ADD COLUMN reasoning_tokens INTEGER NOT NULL DEFAULT 0",
        "ALTER TABLE proposals ADD COLUMN usd REAL NOT NULL DEFAULT 0",
        "ALTER TABLE proposals ADD COLUMN call TEXT NOT NULL DEFAULT ''",
        # The messages of a question as JSON: pairs of a role and the id of a text, because most texts come again.
        """CREATE TABLE questions (
            proposal_id TEXT PRIMARY KEY, op TEXT NOT NULL, model TEXT NOT NULL, endpoint TEXT NOT NULL,
            parameters TEXT NOT NULL, messages TEXT NOT NULL)""",
        "CREATE TABLE texts (id TEXT PRIMARY KEY, text TEXT NOT NULL)",
        "ALTER TABLE runs ADD COLUMN strategy TEXT NOT NULL DEFAULT 'evolve'",
        "ALTER TABLE runs ADD COLUMN budget TEXT NOT NULL DEFAULT '{}'",
        "ALTER TABLE runs ADD COLUMN campaign TEXT NOT NULL DEFAULT ''",
        "ALTER TABLE runs ADD COLUMN words TEXT NOT NULL DEFAULT '[]'",
        "CREATE TABLE legs (id TEXT PRIMARY KEY, run TEXT NOT NULL, started REAL NOT NULL, ended REAL NOT NULL)",
        "ALTER TABLE evaluations ADD COLUMN traits TEXT",
        """CREATE TABLE profiles (
            id TEXT PRIMARY KEY, op TEXT NOT NULL, profile TEXT NOT NULL, created REAL NOT NULL)""",
    ),
    (
        """CREATE TABLE standards (
            id TEXT PRIMARY KEY, op TEXT NOT NULL, standard TEXT NOT NULL, created REAL NOT NULL)""",
    ),
    ("CREATE TABLE merged (evaluation_id TEXT PRIMARY KEY, op TEXT NOT NULL)",),
)
