"""Students: kinds, and building them from a teacher."""
