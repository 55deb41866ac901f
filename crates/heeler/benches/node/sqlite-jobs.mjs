// The newest 20 executions by the documented query of Last Light, through better-sqlite3.
// Makes the table when the file is new. Prints the median seconds per call.
import Database from "better-sqlite3";
import { existsSync } from "node:fs";
const [, , path, count, rounds] = process.argv;
const fresh = !existsSync(path);
const db = new Database(path);
db.pragma("journal_mode = WAL");
if (fresh) {
  db.exec(`CREATE TABLE executions (
    id TEXT PRIMARY KEY, trigger_type TEXT NOT NULL, trigger_id TEXT NOT NULL, skill TEXT NOT NULL,
    repo TEXT, issue_number INTEGER, started_at TEXT NOT NULL, finished_at TEXT, success INTEGER,
    error TEXT, turns INTEGER, duration_ms INTEGER, session_id TEXT, cost_usd REAL,
    input_tokens INTEGER, cache_creation_input_tokens INTEGER, cache_read_input_tokens INTEGER,
    output_tokens INTEGER, api_duration_ms INTEGER, stop_reason TEXT, workflow_run_id TEXT, output_text TEXT);
    CREATE INDEX idx_executions_trigger ON executions(trigger_type, trigger_id);
    CREATE INDEX idx_executions_skill ON executions(skill, started_at);
    CREATE INDEX idx_executions_workflow_run ON executions(workflow_run_id, skill);
    CREATE INDEX idx_executions_started ON executions(started_at DESC);`);
  const insert = db.prepare(
    "INSERT INTO executions (id, trigger_type, trigger_id, skill, started_at, finished_at, success, duration_ms, cost_usd) VALUES (?,?,?,?,?,?,?,?,?)");
  db.transaction(() => {
    for (let i = 0; i < Number(count); i++) {
      const at = new Date(1.7e12 + i * 60000).toISOString();
      insert.run(`e-${i}`, "cron", "nightly", "build:review", at, at, 1, 1234, 0.01);
    }
  })();
}
const query = db.prepare(
  "SELECT id, trigger_type, skill, started_at, finished_at, success, duration_ms, cost_usd FROM executions ORDER BY started_at DESC LIMIT 20");
const times = [];
for (let i = 0; i < Number(rounds); i++) {
  const start = process.hrtime.bigint();
  if (query.all().length !== 20) throw new Error("too few rows");
  times.push(Number(process.hrtime.bigint() - start) / 1e9);
}
times.sort((a, b) => a - b);
console.log(times[times.length >> 1]);
