# cmd: auggie -p hello --output-format json
# exit: 1  wall: 3.67s
   3.416 E ❌ No auth provided. Please log in with `auggie login` or set the AUGMENT_SESSION_AUTH environment variable.
   3.416 E ❌ Failed to initialize API connection
   3.416 E    Reason: Cannot create API setup: Authentication failed: No auth provided. Please log in with `auggie login` or set the AUGMENT_SESSION_AUTH environment variable.
