# cmd: gemini -p 'x MOCK[{"sh":"sleep 81"},{"text":"d"}]' -o stream-json --approval-mode yolo
# exit: TIMEOUT-killed  wall: 69.06s
   5.351 E Warning: Basic terminal detected (TERM=dumb). Visual rendering will be limited. For the best experience, use a terminal emulator with truecolor support.
   5.351 E Warning: 256-color support not detected. Using a terminal with at least 256-color support is recommended for a better visual experience.
   5.437 E YOLO mode is enabled. All tool calls will be automatically approved.
   5.437 E YOLO mode is enabled. All tool calls will be automatically approved.
   5.437 E Ripgrep is not available. Falling back to GrepTool.
   5.437 E [STARTUP] Phase 'cleanup_ops' was started but never ended. Skipping metrics.
   5.437 E [STARTUP] Cannot measure phase 'cleanup_ops': start mark 'startup:cleanup_ops:start' not found (likely cleared by reset).
   5.439 < {"type":"init","timestamp":"2026-11-16T10:58:37.748Z","session_id":"c4cb01fb-816b-43ca-a999-ef70831bd720","model":"auto"}
   5.441 < {"type":"message","timestamp":"2026-11-16T10:58:37.749Z","role":"user","content":"x MOCK[{\"sh\":\"sleep 81\"},{\"text\":\"d\"}]"}
   5.600 < {"type":"tool_use","timestamp":"2026-11-16T10:58:37.909Z","tool_name":"run_shell_command","tool_id":"run_shell_command__fc_s0_8da9c5d9f8b8","parameters":{"command":"sleep 81","description":"mock"}}
