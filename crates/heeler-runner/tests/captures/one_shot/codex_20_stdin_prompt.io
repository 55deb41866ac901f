# cmd: codex exec --json --skip-git-repo-check -
# exit: 0  wall: 0.59s
   0.342 < {"type":"thread.started","thread_id":"01a1e400-5cc0-7c93-a284-e6b510dd7080"}
   0.400 < {"type":"item.completed","item":{"id":"item_0","type":"error","message":"Model metadata for `gpt-5.1-codex` not found. Defaulting to fallback metadata; this can degrade performance and cause issues."}}
   0.432 < {"type":"turn.started"}
   0.501 < {"type":"item.completed","item":{"id":"item_1","type":"agent_message","text":"got it"}}
   0.518 < {"type":"turn.completed","usage":{"input_tokens":100,"cached_input_tokens":0,"cache_write_input_tokens":0,"output_tokens":20,"reasoning_output_tokens":0}}
