"""Between the store and the sites: packets, the pump, Flower."""
