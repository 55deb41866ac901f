// The newest 20 workflow runs through better-sqlite3, on the schema that Last Light documents, without
// the columns that its list leaves out. The newest HEAVY of them have 1 MB of scratch. Makes the table
// when the file is new. Prints the median seconds per call.
//
//   node workflow-runs.mjs DATABASE RUNS HEAVY ROUNDS
import Database from "better-sqlite3";
import { existsSync, renameSync } from "node:fs";
const [, , path, count, heavy, rounds] = process.argv;
if (!existsSync(path)) {
  const made = new Database(`${path}.new`);
  made.pragma("journal_mode = WAL");
  made.exec(`CREATE TABLE workflow_runs (
    id TEXT PRIMARY KEY, workflow_name TEXT NOT NULL, trigger_id TEXT NOT NULL, repo TEXT,
    issue_number INTEGER, current_phase TEXT NOT NULL, phase_history TEXT NOT NULL DEFAULT '[]',
    status TEXT NOT NULL DEFAULT 'running', context TEXT, scratch TEXT, node_statuses TEXT,
    restart_count INTEGER NOT NULL DEFAULT 0, started_at TEXT NOT NULL, updated_at TEXT NOT NULL,
    finished_at TEXT);
    CREATE INDEX idx_workflow_runs_trigger ON workflow_runs(trigger_id, status);
    CREATE INDEX idx_workflow_runs_status ON workflow_runs(status);
    CREATE INDEX idx_workflow_runs_started_at ON workflow_runs(started_at DESC);
    CREATE INDEX idx_workflow_runs_name_started ON workflow_runs(workflow_name, started_at DESC);`);
  const insert = made.prepare(`INSERT INTO workflow_runs (id, workflow_name, trigger_id, current_phase,
    status, context, scratch, started_at, updated_at, finished_at)
    VALUES (?, ?, ?, 'review', 'succeeded', '{}', ?, ?, ?, ?)`);
  const scratch = JSON.stringify({ notes: "x".repeat(1e6) });
  const batch = made.transaction((from, to) => {
    for (let i = from; i < to; i++) {
      const at = new Date(1.7e12 + i * 60000).toISOString();
      const own = i >= Number(count) - Number(heavy) ? scratch : "{}";
      insert.run(`w-${i}`, `flow-${i % 10}`, `issue-${i}`, own, at, at, at);
    }
  });
  for (let from = 0; from < Number(count); from += 250) batch(from, Math.min(from + 250, Number(count)));
  made.pragma("journal_mode = DELETE");
  made.close();
  renameSync(`${path}.new`, path);
}
const db = new Database(path);
const query = db.prepare(`SELECT id, workflow_name, trigger_id, repo, issue_number, current_phase, phase_history,
  status, node_statuses, restart_count, started_at, updated_at, finished_at
  FROM workflow_runs ORDER BY started_at DESC LIMIT 20`);
const times = [];
for (let i = 0; i < Number(rounds); i++) {
  const start = process.hrtime.bigint();
  if (query.all().length !== 20) throw new Error("too few rows");
  times.push(Number(process.hrtime.bigint() - start) / 1e9);
}
times.sort((a, b) => a - b);
console.log(times[times.length >> 1]);
