# cmd: codex exec --json --skip-git-repo-check -s danger-full-access 'go MOCK[{"write":["c.txt","line1"]},{"text":"done"}]'
# exit: 0  wall: 0.64s
   0.214 E Reading additional input from stdin...
   0.362 < {"type":"thread.started","thread_id":"01a1e3ff-fcac-7cd2-8b2f-8bd82e0ae477"}
   0.389 < {"type":"item.completed","item":{"id":"item_0","type":"error","message":"Model metadata for `gpt-5.1-codex` not found. Defaulting to fallback metadata; this can degrade performance and cause issues."}}
   0.422 < {"type":"turn.started"}
   0.493 < {"type":"item.completed","item":{"id":"item_1","type":"agent_message","text":"no write tool in ['exec_command', 'write_stdin', 'request_user_input', 'view_image', 'close_agent', 'resume_agent', 'send_input', 'spawn_agent', 'wait_agent', 'get_goal', 'create_goal', 'update_goal', 'web_search']"}}
   0.511 < {"type":"turn.completed","usage":{"input_tokens":100,"cached_input_tokens":0,"cache_write_input_tokens":0,"output_tokens":20,"reasoning_output_tokens":0}}
