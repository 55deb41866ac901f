# cmd: codex exec resume --json --skip-git-repo-check 01a1e3ff-e877-7c30-a1ff-ea44fd05d958 'again MOCK[{"echo":true}]'
# exit: 0  wall: 0.77s
   0.530 < {"type":"thread.started","thread_id":"01a1e3ff-e877-7c30-a1ff-ea44fd05d958"}
   0.548 < {"type":"item.completed","item":{"id":"item_0","type":"error","message":"Model metadata for `gpt-5.1-codex` not found. Defaulting to fallback metadata; this can degrade performance and cause issues."}}
   0.548 < {"type":"turn.started"}
   0.637 < {"type":"item.completed","item":{"id":"item_1","type":"agent_message","text":"[[\"user\", \"<environment_context>\\n  <cwd>/project</cwd>\\n  <shell>bash</shell>\\n  <current_date>2026-11-16</current_date>\\n  <timezone>Etc/UTC</timezone>\\n  <filesystem><workspace_roots><root>/tmp/\"], [\"user\", \"hello MOCK[{\\\"thinking\\\":\\\"let me think\\\",\\\"text\\\":\\\"hi there\\\",\\\"usage\\\":{\\\"input\\\":1000,\\\"cached\\\":400,\\\"output\\\":50,\\\"reasoning\\\":7}}]\"], [\"assistant\", \"hi there\"], [\"user\", \"again MOCK[{\\\"echo\\\":true}]\"]]"}}
   0.666 < {"type":"turn.completed","usage":{"input_tokens":1100,"cached_input_tokens":400,"cache_write_input_tokens":0,"output_tokens":70,"reasoning_output_tokens":7}}
