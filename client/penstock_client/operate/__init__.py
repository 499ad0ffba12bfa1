"""Running a site: its processes, its doctor, its end of Flower."""
