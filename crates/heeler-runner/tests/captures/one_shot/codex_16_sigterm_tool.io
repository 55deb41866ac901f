# cmd: codex exec --json --skip-git-repo-check -s danger-full-access 'x MOCK[{"sh":"sleep 78"},{"text":"done"}]'
# exit: -15  wall: 4.03s
   0.231 E Reading additional input from stdin...
   0.374 < {"type":"thread.started","thread_id":"01a1e400-4717-7b50-be70-05e6d76623ba"}
   0.406 < {"type":"item.completed","item":{"id":"item_0","type":"error","message":"Model metadata for `gpt-5.1-codex` not found. Defaulting to fallback metadata; this can degrade performance and cause issues."}}
   0.458 < {"type":"turn.started"}
   0.719 < {"type":"item.started","item":{"id":"item_1","type":"command_execution","command":"/bin/bash -lc 'sleep 78'","aggregated_output":"","exit_code":null,"status":"in_progress"}}
