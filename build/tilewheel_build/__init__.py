"""The build driver: spec -> variants -> device source -> device binary -> artifact -> manifest."""
