# cmd: codex exec --json --skip-git-repo-check -s danger-full-access 'go MOCK[{"sh":"touch b.txt && echo made"},{"text":"done"}]'
# exit: 0  wall: 0.86s
   0.188 E Reading additional input from stdin...
   0.307 < {"type":"thread.started","thread_id":"01a1e3ff-f954-7411-85f4-98c57468cf4e"}
   0.385 < {"type":"item.completed","item":{"id":"item_0","type":"error","message":"Model metadata for `gpt-5.1-codex` not found. Defaulting to fallback metadata; this can degrade performance and cause issues."}}
   0.445 < {"type":"turn.started"}
   0.667 < {"type":"item.started","item":{"id":"item_1","type":"command_execution","command":"/bin/bash -lc 'touch b.txt && echo made'","aggregated_output":"","exit_code":null,"status":"in_progress"}}
   0.667 < {"type":"item.completed","item":{"id":"item_1","type":"command_execution","command":"/bin/bash -lc 'touch b.txt && echo made'","aggregated_output":"made\n","exit_code":0,"status":"completed"}}
   0.719 < {"type":"item.completed","item":{"id":"item_2","type":"agent_message","text":"done"}}
   0.733 < {"type":"turn.completed","usage":{"input_tokens":200,"cached_input_tokens":0,"cache_write_input_tokens":0,"output_tokens":40,"reasoning_output_tokens":0}}
