-- The tables as the first published edition of Last Light's specification lists them.
CREATE TABLE executions (
  id TEXT PRIMARY KEY, trigger_type TEXT NOT NULL, trigger_id TEXT NOT NULL, skill TEXT NOT NULL,
  repo TEXT, issue_number INTEGER, started_at TEXT NOT NULL, finished_at TEXT, success INTEGER,
  error TEXT, turns INTEGER, duration_ms INTEGER, session_id TEXT, cost_usd REAL,
  input_tokens INTEGER, cache_creation_input_tokens INTEGER, cache_read_input_tokens INTEGER,
  output_tokens INTEGER, api_duration_ms INTEGER, stop_reason TEXT, workflow_run_id TEXT,
  output_text TEXT
);
CREATE TABLE workflow_runs (
  id TEXT PRIMARY KEY, workflow_name TEXT NOT NULL, trigger_id TEXT NOT NULL, repo TEXT,
  issue_number INTEGER, current_phase TEXT NOT NULL, phase_history TEXT NOT NULL DEFAULT '[]',
  status TEXT NOT NULL DEFAULT 'running', context TEXT, scratch TEXT, node_statuses TEXT,
  restart_count INTEGER NOT NULL DEFAULT 0, started_at TEXT NOT NULL, updated_at TEXT NOT NULL,
  finished_at TEXT
);
CREATE TABLE workflow_approvals (
  id TEXT PRIMARY KEY, workflow_run_id TEXT NOT NULL, gate TEXT NOT NULL, summary TEXT NOT NULL,
  status TEXT NOT NULL DEFAULT 'pending', kind TEXT NOT NULL DEFAULT 'approve', requested_by TEXT,
  responded_by TEXT, response TEXT, responded_at TEXT, created_at TEXT NOT NULL
);
CREATE TABLE cron_overrides (
  name TEXT PRIMARY KEY, enabled INTEGER NOT NULL DEFAULT 1, schedule TEXT,
  updated_at TEXT NOT NULL, updated_by TEXT
);
CREATE TABLE workflow_overrides (
  name TEXT PRIMARY KEY, enabled INTEGER NOT NULL DEFAULT 1, updated_at TEXT NOT NULL,
  updated_by TEXT
);
CREATE TABLE messaging_sessions (
  id TEXT PRIMARY KEY, platform TEXT NOT NULL, channel_id TEXT NOT NULL, thread_id TEXT,
  user_id TEXT NOT NULL, agent_session_id TEXT, created_at TEXT NOT NULL,
  last_activity_at TEXT NOT NULL, message_count INTEGER DEFAULT 0, active INTEGER DEFAULT 1
);
CREATE UNIQUE INDEX idx_msg_sessions_unique_active
  ON messaging_sessions(platform, channel_id, thread_id, user_id) WHERE active = 1;
CREATE TABLE messaging_messages (
  id INTEGER PRIMARY KEY AUTOINCREMENT, session_id TEXT NOT NULL REFERENCES messaging_sessions(id),
  role TEXT NOT NULL, content TEXT NOT NULL, timestamp TEXT NOT NULL, platform_message_id TEXT
);

INSERT INTO executions (id, trigger_type, trigger_id, skill, repo, issue_number, started_at,
  finished_at, success, error, turns, duration_ms, session_id, cost_usd, input_tokens,
  output_tokens, stop_reason, workflow_run_id, output_text) VALUES
 ('11111111-0000-4000-8000-000000000001', 'webhook', 'ann/site#7', 'build:architect', 'ann/site', 7,
  '2025-02-03T04:05:06.000Z', '2025-02-03T04:06:06.000Z', 1, NULL, 5, 60000,
  'aaaa0001-0000-4000-8000-000000000001', 0.13, 1000, 200, 'end_turn', 'run-1', NULL),
 ('11111111-0000-4000-8000-000000000002', 'webhook', 'ann/site#7', 'build:browser', 'ann/site', 7,
  '2025-02-03T04:06:07.000Z', '2025-02-03T04:06:07.000Z', 0, NULL, NULL, 0, NULL, NULL, NULL, NULL,
  'skipped', 'run-1', NULL),
 ('11111111-0000-4000-8000-000000000003', 'cron', 'ann/site::triage', 'triage:scan', 'ann/site', NULL,
  '2025-02-03T05:00:00.000Z', '2025-02-03T05:00:01.000Z', 0, 'usage limit reached', NULL, 1000, NULL,
  NULL, NULL, NULL, 'error_quota', 'run-2', NULL),
 ('11111111-0000-4000-8000-000000000004', 'webhook', 'ann/site#8', 'build:executor', 'ann/site', 8,
  '2025-02-03T06:00:00.000Z', NULL, NULL, NULL, NULL, NULL,
  'aaaa0002-0000-4000-8000-000000000002', NULL, NULL, NULL, NULL, 'run-3', NULL),
 ('11111111-0000-4000-8000-000000000005', 'chat', 'chat-1', 'chat', NULL, NULL,
  '2025-02-03T07:00:00.000Z', '2025-02-03T07:00:09.000Z', 1, NULL, 1, 9000,
  'aaaa0003-0000-4000-8000-000000000003', 0.01, 10, 20, 'end_turn', NULL, 'the answer'),
 ('../../etc/passwd', 'api', '', 'chat', NULL, NULL, '2025-02-03T08:00:00.000Z', NULL, 1, NULL, NULL,
  NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL);

INSERT INTO workflow_runs (id, workflow_name, trigger_id, repo, issue_number, current_phase,
  phase_history, status, context, scratch, node_statuses, restart_count, started_at, updated_at,
  finished_at) VALUES
 ('run-1', 'build', 'ann/site#7', 'ann/site', 7, 'pr', '[{"phase":"architect","success":true}]',
  'succeeded', '{"title":"Login"}', '{"k":1}', '{"architect":"succeeded"}', 0,
  '2025-02-03T04:05:00.000Z', '2025-02-03T04:10:00.000Z', '2025-02-03T04:10:00.000Z'),
 ('run-2', 'triage', 'ann/site::triage', 'ann/site', NULL, 'scan', '[]', 'paused', '{}', NULL, NULL, 1,
  '2025-02-03T05:00:00.000Z', '2025-02-03T05:00:01.000Z', NULL),
 ('run-3', 'build', 'ann/site#8', 'ann/site', 8, 'executor', '[]', 'running', '{}', NULL, NULL, 0,
  '2025-02-03T06:00:00.000Z', '2025-02-03T06:00:00.000Z', NULL);

INSERT INTO workflow_approvals (id, workflow_run_id, gate, summary, status, created_at) VALUES
 ('ap-1', 'run-2', 'post_scan', 'Go on?', 'pending', '2025-02-03T05:00:01.000Z');
INSERT INTO cron_overrides VALUES ('nightly', 0, '0 3 * * *', '2025-02-01T00:00:00.000Z', 'ann');
INSERT INTO workflow_overrides VALUES ('build', 1, '2025-02-01T00:00:00.000Z', 'ann');
INSERT INTO messaging_sessions VALUES
 ('chat-1', 'slack', 'C1', '169.22', 'U1', 'aaaa0003-0000-4000-8000-000000000003',
  '2025-02-03T07:00:00.000Z', '2025-02-03T07:00:09.000Z', 2, 1),
 ('chat-2', 'slack', 'C1', NULL, 'U1', NULL, '2025-02-03T07:10:00.000Z', '2025-02-03T07:10:00.000Z', 0, 1),
 ('chat-3', 'slack', 'C1', NULL, 'U1', NULL, '2025-02-03T07:10:00.100Z', '2025-02-03T07:20:00.000Z', 1, 1);
INSERT INTO messaging_messages (session_id, role, content, timestamp) VALUES
 ('chat-1', 'user', 'hello', '2025-02-03T07:00:00.000Z'),
 ('chat-1', 'assistant', 'the answer', '2025-02-03T07:00:09.000Z'),
 ('chat-3', 'user', 'hello', '2025-02-03T07:20:00.000Z'),
 ('chat-3', 'user', 'hello', '2025-02-03T07:20:00.000Z');
