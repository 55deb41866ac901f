# cmd: codex exec --json --skip-git-repo-check 'go MOCK[{"text":"I will run it","sh":"echo hello; pwd"},{"text":"done"}]'
# exit: 0  wall: 1.08s
   0.257 E Reading additional input from stdin...
   0.356 < {"type":"thread.started","thread_id":"01a1e3ff-ebab-72e3-be18-186b4a736d3f"}
   0.392 < {"type":"item.completed","item":{"id":"item_0","type":"error","message":"Model metadata for `gpt-5.1-codex` not found. Defaulting to fallback metadata; this can degrade performance and cause issues."}}
   0.438 < {"type":"turn.started"}
   0.571 < {"type":"item.completed","item":{"id":"item_1","type":"agent_message","text":"I will run it"}}
   0.781 < {"type":"item.started","item":{"id":"item_2","type":"command_execution","command":"/bin/bash -lc 'echo hello; pwd'","aggregated_output":"","exit_code":null,"status":"in_progress"}}
   0.788 < {"type":"item.completed","item":{"id":"item_2","type":"command_execution","command":"/bin/bash -lc 'echo hello; pwd'","aggregated_output":"hello\n/project\n","exit_code":0,"status":"completed"}}
   0.877 < {"type":"item.completed","item":{"id":"item_3","type":"agent_message","text":"done"}}
   0.899 < {"type":"turn.completed","usage":{"input_tokens":200,"cached_input_tokens":0,"cache_write_input_tokens":0,"output_tokens":40,"reasoning_output_tokens":0}}
