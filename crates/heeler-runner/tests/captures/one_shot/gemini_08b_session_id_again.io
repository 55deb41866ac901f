# cmd: gemini -p 'x MOCK[{"text":"ok"}]' -o stream-json --session-id 11111111-2222-4333-8444-555555555555
# exit: 42  wall: 4.54s
   4.503 E Error starting session: Session ID "11111111-2222-4333-8444-555555555555" already exists. Use --resume to resume it, or provide a different ID.
