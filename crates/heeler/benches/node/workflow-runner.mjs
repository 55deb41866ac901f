// A minimal sequential runner of workflows, written as a user would write it for Node.js on the schema
// that Last Light documents: each phase is a row of `executions`, and the run's row has the history of
// its phases, which is read, appended to and written back. better-sqlite3's own settings: in WAL mode
// nothing is synced unless FULL is given. It resumes nothing and asks nobody.
//
//   node workflow-runner.mjs DATABASE PHASES COMMAND WHAT [FULL]
//
// COMMAND is what each phase runs in bash, or `-` for nothing. WHAT is printed: `total` seconds, `p50`
// seconds from one phase's commit to the next one's start, or `ratio` of the last tenth of the phases'
// time to the first tenth's.
import Database from "better-sqlite3";
import { spawnSync } from "node:child_process";
import { rmSync } from "node:fs";
const [, , path, count, command, what, full] = process.argv;
for (const end of ["", "-wal", "-shm"]) rmSync(path + end, { force: true });
const db = new Database(path);
db.pragma("journal_mode = WAL");
if (full) db.pragma("synchronous = FULL");
db.exec(`CREATE TABLE executions (
  id TEXT PRIMARY KEY, trigger_type TEXT NOT NULL, trigger_id TEXT NOT NULL, skill TEXT NOT NULL,
  repo TEXT, issue_number INTEGER, started_at TEXT NOT NULL, finished_at TEXT, success INTEGER,
  error TEXT, turns INTEGER, duration_ms INTEGER, session_id TEXT, cost_usd REAL,
  input_tokens INTEGER, cache_creation_input_tokens INTEGER, cache_read_input_tokens INTEGER,
  output_tokens INTEGER, api_duration_ms INTEGER, stop_reason TEXT, workflow_run_id TEXT, output_text TEXT);
  CREATE INDEX idx_executions_trigger ON executions(trigger_type, trigger_id);
  CREATE INDEX idx_executions_skill ON executions(skill, started_at);
  CREATE INDEX idx_executions_workflow_run ON executions(workflow_run_id, skill);
  CREATE INDEX idx_executions_started ON executions(started_at DESC);
  CREATE TABLE workflow_runs (
  id TEXT PRIMARY KEY, workflow_name TEXT NOT NULL, trigger_id TEXT NOT NULL, repo TEXT,
  issue_number INTEGER, current_phase TEXT NOT NULL, phase_history TEXT NOT NULL DEFAULT '[]',
  status TEXT NOT NULL DEFAULT 'running', context TEXT, scratch TEXT, node_statuses TEXT,
  restart_count INTEGER NOT NULL DEFAULT 0, started_at TEXT NOT NULL, updated_at TEXT NOT NULL,
  finished_at TEXT);
  CREATE INDEX idx_workflow_runs_trigger ON workflow_runs(trigger_id, status);
  CREATE INDEX idx_workflow_runs_status ON workflow_runs(status);
  CREATE INDEX idx_workflow_runs_started_at ON workflow_runs(started_at DESC);
  CREATE INDEX idx_workflow_runs_name_started ON workflow_runs(workflow_name, started_at DESC);`);
const now = () => new Date().toISOString();
db.prepare(`INSERT INTO workflow_runs (id, workflow_name, trigger_id, current_phase, context, scratch,
  started_at, updated_at) VALUES ('run', 'bench', 'bench', '', '{}', '{}', ?, ?)`).run(now(), now());
const begin = db.prepare(`INSERT INTO executions (id, trigger_type, trigger_id, skill, started_at,
  workflow_run_id) VALUES (?, 'manual', 'bench', ?, ?, 'run')`);
const finish = db.prepare("UPDATE executions SET finished_at = ?, success = 1 WHERE id = ?");
const history = db.prepare("SELECT phase_history FROM workflow_runs WHERE id = 'run'");
const append = db.prepare(
  "UPDATE workflow_runs SET phase_history = ?, current_phase = ?, updated_at = ? WHERE id = 'run'");
const end = db.transaction((i, phase) => {
  finish.run(now(), `run-${i}`);
  const phases = JSON.parse(history.get().phase_history);
  phases.push({ phase, timestamp: now(), success: true, summary: "" });
  append.run(JSON.stringify(phases), phase, now());
});

const starts = [];
const gaps = [];
let committed;
for (let i = 0; i < Number(count); i++) {
  const phase = `p${i}`;
  begin.run(`run-${i}`, `bench:${phase}`, now());
  starts.push(performance.now());
  // What counts is from the write that ends a phase to the row of the next one.
  if (committed !== undefined) gaps.push(performance.now() - committed);
  if (command !== "-") spawnSync("bash", ["-c", command], { stdio: ["ignore", "pipe", "pipe"] });
  committed = performance.now();
  end(i, phase);
}
starts.push(performance.now());
const tenth = Math.floor(Number(count) / 10);
const between = (from, to) => (starts[to] - starts[from]) / 1000;
const last = starts.length - 1;
if (what === "total") console.log(between(0, last));
else if (what === "ratio") console.log(between(last - tenth, last) / between(0, tenth));
else console.log(gaps.sort((a, b) => a - b)[gaps.length >> 1] / 1000);
