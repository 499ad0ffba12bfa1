"""Tables as classes of persons, within which columns hardly go together."""
