"""Running a coordinator: its processes, its doctor."""
