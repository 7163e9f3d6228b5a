module tidegate.dev/pause

go 1.24.0
